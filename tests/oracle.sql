-- Joins, leads, stalls and their causes from the raw tables of an nsys export: strings, nvtx, runtime, work (kernels,
-- copies, memsets and graph replays as one table), and step_name(). Written from the definitions of the metrics alone.

CREATE VIEW ranges AS
SELECT globalTid >> 24 AS process, globalTid AS thread, domainId AS domain, coalesce(text, value) AS name,
       "start" AS begun, "end" AS ended
FROM nvtx LEFT JOIN strings ON strings.id = textId
WHERE eventType IN (59, 60) AND "end" >= "start";

-- a step is the outermost of the ranges of that name
CREATE TABLE steps AS
SELECT process, thread, domain, begun, ended FROM ranges AS r
WHERE name = step_name() AND NOT EXISTS (
  FROM ranges AS o WHERE o.name = step_name() AND o.process = r.process AND o.begun <= r.begun AND o.ended >= r.ended
  AND (o.begun, o.ended) <> (r.begun, r.ended));

-- rows of event class 67 are backtraces: they repeat the id of a call and are none
CREATE TABLE calls AS
SELECT globalTid >> 24 AS process, globalTid AS thread, correlationId AS id, "start" AS begun, "end" AS ended,
       regexp_replace(value, '_v[0-9]+$', '') AS name
FROM runtime JOIN strings ON strings.id = nameId WHERE coalesce(eventClass, 0) IN (0, 1) AND "end" >= "start";

-- one launch is one piece, on however many streams; its lane is the stream of most of its time, and what most pieces of
-- its graph have
CREATE TABLE pieces AS
WITH by_stream AS (
  SELECT globalPid >> 24 AS process, deviceId AS device, streamId AS stream, correlationId AS id,
         min("start") AS begun, max("end") AS ended, sum("end" - "start") AS busy, max(graphExecId) AS graph
  FROM work WHERE correlationId <> 0 AND "end" >= "start" GROUP BY ALL),
joined AS (
  SELECT process, device, id, min(begun) AS begun, max(ended) AS ended, max(graph) AS graph,
         arg_max(stream, (busy, -stream)) AS stream FROM by_stream GROUP BY process, device, id)
SELECT * EXCLUDE (stream), CASE WHEN graph IS NULL THEN stream
  ELSE mode(stream) OVER (PARTITION BY process, device, graph) END AS lane
FROM joined;

-- lead: when the lane would have run dry, less when the call began; a lane's first launch has none. Work without a call
-- is there before whatever starts after it. Where calls of a name mostly have work, one without has lost it: nobody
-- knows the lead of the launch behind; a few copies leave no row in any capture
CREATE TABLE all_launches AS
WITH marked AS (
  -- what is launched while a graph is captured becomes its node, and runs with its replays
  SELECT *, EXISTS (FROM pieces AS p WHERE (p.process, p.id) = (c.process, c.id)) AS has_work,
         sum(CASE WHEN name LIKE '%StreamBeginCapture%' THEN 1 WHEN name LIKE '%StreamEndCapture%' THEN -1 ELSE 0 END)
         OVER (PARTITION BY process ORDER BY begun, id) > 0 AS is_captured FROM calls AS c),
shares AS (
  SELECT process, name, avg(has_work::INTEGER) AS share FROM marked WHERE NOT is_captured GROUP BY ALL),
first_calls AS (
  SELECT m.*, NOT has_work AND NOT is_captured AND share > 0.5 AND share < 0.995 AS is_lost
  FROM marked AS m LEFT JOIN shares USING (process, name)
  QUALIFY row_number() OVER (PARTITION BY process, id ORDER BY begun) = 1),
alone AS (FROM pieces ANTI JOIN first_calls USING (process, id)),
counted AS (
  SELECT *, sum(coalesce(is_lost, false)::INTEGER) OVER (PARTITION BY process ORDER BY begun, id) AS lost FROM first_calls),
joined AS (
  SELECT c.process, thread, id, device, lane, c.begun, name,
         max(p.ended) OVER (so_far ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
         lost = lag(lost) OVER so_far AS is_known,
         (SELECT max(a.ended) FROM alone AS a
          WHERE (a.process, a.device, a.lane) = (p.process, p.device, p.lane) AND a.begun < p.begun) AS beside
  FROM counted AS c JOIN pieces AS p USING (process, id)
  WINDOW so_far AS (PARTITION BY c.process, device, lane ORDER BY c.begun, id))
SELECT *, CASE WHEN before IS NOT NULL AND is_known THEN greatest(before, beside) END AS dry, dry - begun AS lead
FROM joined;

CREATE TABLE launches AS
SELECT a.*, s.begun AS step, s.domain
FROM all_launches AS a ASOF JOIN steps AS s ON a.process = s.process AND a.begun >= s.begun WHERE a.begun < s.ended;

CREATE VIEW step_leads AS
SELECT process, lead FROM launches WHERE name LIKE '%Graph%'
QUALIFY row_number() OVER (PARTITION BY process, step ORDER BY begun, id) = 1;

CREATE TABLE stalls AS SELECT *, row_number() OVER () AS stall, -lead AS lost FROM launches WHERE lead < 0;

-- the innermost range of the step's domain, and the call, that held the launching thread when the stream ran dry
CREATE VIEW causes AS
WITH held AS (
  SELECT stall, arg_max(r.name, (r.begun, -r.ended)) AS name
  FROM stalls JOIN ranges AS r USING (process, thread, domain) WHERE r.begun <= dry AND dry < r.ended GROUP BY stall),
called AS (
  SELECT stall, arg_max(c.name, c.begun) AS name
  FROM stalls JOIN calls AS c USING (process, thread) WHERE c.begun <= dry AND dry < c.ended GROUP BY stall)
SELECT process, coalesce(held.name, '-') || ' · ' || coalesce(called.name, '-') AS cause,
       count(*) AS launches, sum(lost)::BIGINT AS total_ns, median(lost) AS p50_ns
FROM stalls LEFT JOIN held USING (stall) LEFT JOIN called USING (stall) GROUP BY ALL;

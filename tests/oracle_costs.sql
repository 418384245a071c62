-- What the host costs, from the views of oracle.sql: busy and exposed time of the host, dry time of the GPU and its causes.

-- step k lasts until the next one starts, the last one as long as its range; all of it on the thread of the step
CREATE TABLE spans AS
SELECT process, thread, domain, begun, coalesce(lead(begun) OVER (PARTITION BY process ORDER BY begun), ended) AS ended
FROM steps;

CREATE TABLE waits AS
SELECT process, thread, begun, ended FROM calls
WHERE regexp_matches(name, '^(cuda|cu|hip)[A-Za-z]*Synchronize$') OR name LIKE 'hipMemcpyWithStream%'
   OR (regexp_matches(name, '^(cuda|cu|hip)Memcpy') AND name NOT LIKE '%Async%');

-- of ranges of one name inside each other the outermost, in the step that they start in, without the waits in them
CREATE VIEW costs AS
WITH outer_ranges AS (
  SELECT r.process, r.thread, name, s.begun AS step, r.begun, r.ended
  FROM ranges AS r JOIN spans AS s USING (process, thread, domain)
  WHERE r.begun >= s.begun AND r.begun < s.ended AND NOT EXISTS (
    FROM ranges AS o WHERE (o.process, o.thread, o.name) = (r.process, r.thread, r.name)
    AND o.begun <= r.begun AND o.ended >= r.ended AND (o.begun, o.ended) <> (r.begun, r.ended))),
waited AS (
  SELECT r.process, name, step, r.begun, sum(least(w.ended, r.ended) - greatest(w.begun, r.begun)) AS ns
  FROM outer_ranges AS r JOIN waits AS w ON w.thread = r.thread AND w.begun < r.ended AND w.ended > r.begun GROUP BY ALL)
SELECT process, name, step, sum(ended - begun - coalesce(ns, 0))::BIGINT AS cost
FROM outer_ranges LEFT JOIN waited USING (process, name, step, begun) GROUP BY ALL;

-- between two steps: from one start to the next, without agreements and without waits outside them
CREATE VIEW busy AS
WITH met AS (
  SELECT s.process, s.begun AS step, r.begun, r.ended FROM spans AS s JOIN ranges AS r USING (process, thread, domain)
  WHERE r.name = 'dp_agreement' AND r.begun >= s.begun AND r.begun < s.ended),
lost AS (
  SELECT process, step, ended - begun AS ns FROM met
  UNION ALL
  SELECT s.process, s.begun, w.ended - w.begun FROM spans AS s JOIN waits AS w USING (process, thread)
  WHERE w.begun >= s.begun AND w.begun < s.ended AND NOT EXISTS (
    FROM met WHERE met.process = s.process AND met.begun <= w.begun AND w.begun < met.ended))
SELECT s.process, s.begun AS step, (s.ended - s.begun - coalesce(sum(ns), 0))::BIGINT AS busy
FROM spans AS s LEFT JOIN lost ON (lost.process, lost.step) = (s.process, s.begun)
WHERE s.begun < (SELECT max(begun) FROM steps WHERE process = s.process) GROUP BY s.process, s.begun, s.ended;

-- a gap between pieces of GPU work of a device, on whatever lane, until the launch that ends it was called
CREATE TABLE dry AS
WITH united AS (
  SELECT process, id, begun, max(ended) OVER (PARTITION BY process, device ORDER BY begun, ended
                                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS over FROM pieces),
gaps AS (
  SELECT u.process, c.thread, u.over AS begun, least(c.begun, u.begun) AS ended, c.begun AS called
  FROM united AS u JOIN (SELECT DISTINCT ON (process, id) * FROM calls ORDER BY process, id, begun) AS c USING (process, id)
  WHERE u.begun > u.over AND c.begun > u.over)
SELECT g.process, g.thread, g.begun, g.ended, s.begun AS step, s.domain
FROM gaps AS g ASOF JOIN spans AS s ON g.process = s.process AND g.called >= s.begun WHERE g.called < s.ended;

-- every instant of a gap belongs to the innermost range and the call that held the launching thread
CREATE VIEW dry_causes AS
WITH cuts AS (
  SELECT d.process, d.thread, d.domain, d.begun AS gap, d.begun AS moment FROM dry AS d
  UNION SELECT d.process, d.thread, d.domain, d.begun, unnest([e.begun, e.ended])
  FROM dry AS d JOIN (SELECT thread, begun, ended FROM ranges UNION SELECT thread, begun, ended FROM calls) AS e
  ON e.thread = d.thread AND e.begun < d.ended AND e.ended > d.begun),
slices AS (
  SELECT c.*, coalesce(lead(moment) OVER (PARTITION BY c.process, gap ORDER BY moment), d.ended) AS until
  FROM cuts AS c JOIN dry AS d ON (d.process, d.begun) = (c.process, c.gap) WHERE moment >= d.begun AND moment < d.ended),
named AS (
  SELECT s.process, until - moment AS ns,
    (SELECT arg_max(r.name, (r.begun, -r.ended)) FROM ranges AS r
     WHERE (r.thread, r.domain) = (s.thread, s.domain) AND r.begun <= moment AND moment < r.ended) AS range_name,
    (SELECT arg_max(c.name, c.begun) FROM calls AS c WHERE c.thread = s.thread AND c.begun <= moment AND moment < c.ended) AS call
  FROM slices AS s)
SELECT process, coalesce(range_name, '-') || ' · ' || coalesce(call, '-') AS cause, sum(ns)::BIGINT AS total_ns
FROM named GROUP BY ALL;

-- what a launch came too late by, laid on the thread's waits since its launch before: the last wait first
CREATE VIEW exposed AS
WITH launched AS (
  SELECT process, thread, begun, min(lead) AS lead FROM all_launches GROUP BY ALL),
late AS (
  SELECT *, lag(begun) OVER (PARTITION BY process, thread ORDER BY begun) AS before FROM launched),
behind AS (
  SELECT l.process, w.begun AS wait, w.ended - w.begun AS length, -lead AS lost,
         coalesce(sum(w.ended - w.begun) OVER (PARTITION BY l.process, l.thread, l.begun ORDER BY w.begun DESC
                                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS later
  FROM late AS l JOIN waits AS w ON w.thread = l.thread AND w.begun < l.begun AND w.begun >= coalesce(before, w.begun)
  WHERE lead < 0)
SELECT b.process, s.begun AS step, greatest(0, least(length, lost - later))::BIGINT AS ns
FROM behind AS b ASOF JOIN spans AS s ON b.process = s.process AND wait >= s.begun WHERE wait < s.ended;

"""What a capture of a run must hold, from page size and lengths alone."""


def pages_of(length, page_size):
    return -(-length // page_size)


def pages_taken(lengths, tokens, page_size):
    """Pages that each step of a round takes, its prefill first.

    Prefill computes the first output token and stores the prompt; the step that computes token k + 1 stores token k.
    """
    steps = [sum(pages_of(n, page_size) for n in lengths)]
    for k in range(1, tokens):
        steps.append(sum(pages_of(n + k, page_size) - pages_of(n + k - 1, page_size) for n in lengths))
    return steps


def pages_reserved(lengths, tokens, page_size, block, is_overlapped):
    """The same under DFlash if no draft is accepted: whole pages for two blocks behind what is committed.

    The overlapped loop prepares a step before it has read the last one's result. The rest of a page is no new page, but
    an allocation too, and counted as 1.
    """
    allocated = list(lengths)
    steps = [sum(pages_of(n, page_size) for n in lengths)]
    for step in range(tokens - 1):
        committed = max(step - 1, 0) if is_overlapped else step
        wanted = [pages_of(n + committed + 2 * block, page_size) * page_size for n in lengths]
        wanted = [max(pair) for pair in zip(allocated, wanted, strict=True)]
        new = sum(pages_of(w, page_size) - pages_of(a, page_size) for a, w in zip(allocated, wanted, strict=True))
        steps.append(new or int(wanted != allocated))
        allocated = wanted
    return steps


def of_sglang(rounds, page_size, block, spec, is_overlapped):
    """``rounds``: the lengths of the prompts of each, and its tokens."""
    steps = []
    for lengths, tokens in rounds:
        if spec == "dflash":
            steps += pages_reserved(lengths, tokens, page_size, block, is_overlapped)
        else:
            steps += pages_taken(lengths, tokens, page_size)
    return {
        "steps": len(steps),
        "prepare_for_decode": len(steps) - len(rounds),
        "allocating_steps": sum(n > 0 for n in steps),
    }


def of_vllm(rounds, block_size):
    """vLLM takes blocks a request: step k of a round computes token k of each."""

    def blocks(length, step):
        return pages_of(length + step, block_size) if step >= 0 else 0

    steps = [sum(blocks(n, k) > blocks(n, k - 1) for n in lengths) for lengths, tokens in rounds for k in range(tokens)]
    return {"steps": len(steps), "allocating_steps": sum(n > 0 for n in steps), "allocations": sum(steps)}

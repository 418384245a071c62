"""What SGLang's paths without a GPU call of ``sgl_kernel``, in torch, and shims for what they lack.

Without ``convert_weight_packed`` SGLang believes that there is no AMX and takes its plain torch layers. Preparation,
allocation, scheduling, DFlash worker and model are SGLang's own.
"""


def assign_req_to_token_pool_cpu(rows, table, start, end, slots, width):
    """slots, laid end to end, into columns start..end of each row."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        if last > first:
            table[row, first:last] = slots[at : at + last - first].to(table.dtype)
            at += last - first


def assign_extend_cache_locs_cpu(rows, table, start, end, slots, width):
    """The other way: columns start..end of each row, laid end to end, into slots."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        slots[at : at + last - first] = table[row, first:last].to(slots.dtype)
        at += last - first


def fill_accept_out_cache_loc_cpu(accept_index, slots, accepted_slots):
    """The slots of accepted tokens, in order, without gaps."""
    found = slots[accept_index[accept_index >= 0].long()]
    accepted_slots[: len(found)] = found


def fill_bonus_tokens_cpu(tokens, lens, bonus, stride):
    """Of each request's row of ``stride`` tokens the last accepted one."""
    rows = tokens.view(-1, stride)[: len(lens)]
    bonus[: len(lens)] = rows.gather(1, (lens.long() - 1)[:, None])[:, 0].to(bonus.dtype)


def reconstruct_indices_from_tree_mask(mask, lens, positions, index, next_token, next_sibling, count, width):
    """From who is whose ancestor in each request's draft tree: depth, first child and next sibling of each node."""
    tree = mask.view(count, width, width).bool().tolist()
    for request, length in enumerate(lens.tolist()):
        parents = []
        for node in range(width):
            ancestors = [other for other in range(node) if tree[request][node][other]]
            parents.append(ancestors[-1] if ancestors else -1)
            positions.view(count, width)[request, node] = length + len(ancestors)
            index.view(count, width)[request, node] = request * width + node
        for node, parent in enumerate(parents):
            later = range(node + 1, width)
            child = next((each for each in later if parents[each] == node), -1)
            sibling = next((each for each in later if parents[each] == parent >= 0), -1)
            next_token.view(count, width)[request, node] = child
            next_sibling.view(count, width)[request, node] = sibling


def verify_tree_greedy_cpu(
    predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
    target_predict,
):  # fmt: skip
    """Down each draft tree as long as a child is what the target predicts; the target's next token ends the way."""
    index, children = retrive_index.tolist(), retrive_next_token.tolist()
    siblings, drafts = retrive_next_sibling.tolist(), candidates.tolist()
    targets = target_predict.reshape(-1).tolist()
    for request in range(len(drafts)):
        node, at, accepted = 0, index[request][0], 0
        accept_index[request, 0] = at
        while accepted + 1 < accept_index.shape[1]:
            child = children[request][node]
            while child >= 0 and drafts[request][child] != targets[at]:
                child = siblings[request][child]
            if child < 0:
                break
            predicts[at] = targets[at]
            node, at, accepted = child, index[request][child], accepted + 1
            accept_index[request, accepted] = at
        predicts[at] = targets[at]
        accept_token_num[request] = accepted


_REAL = {
    each.__name__: each
    for each in (
        assign_req_to_token_pool_cpu,
        assign_extend_cache_locs_cpu,
        fill_accept_out_cache_loc_cpu,
        fill_bonus_tokens_cpu,
        reconstruct_indices_from_tree_mask,
        verify_tree_greedy_cpu,
    )
}


def real(module, name):
    """The attribute of a stand-in module."""
    from stubs import made_up

    return (module.startswith("sgl_kernel") and _REAL.get(name)) or made_up(name)


def verify_on_torch_native(module):
    """SGLang's attention in plain torch knows prefill and decode, not the verification of drafts.

    To it a verification is a prefill of the draft tokens behind a prefix: the lengths that it reads are filled in. For
    drafts in a row only: it masks causally, and a draft tree's mask is not looked at.
    """
    backend = module.TorchNativeAttnBackend
    extend = backend.forward_extend

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True):
        if forward_batch.forward_mode.is_target_verify() and forward_batch.extend_seq_lens is None:
            lens = forward_batch.seq_lens
            width = q.shape[0] // len(lens)
            forward_batch.extend_prefix_lens = lens
            forward_batch.extend_seq_lens = lens * 0 + width
            forward_batch.seq_lens = lens + width
        return extend(self, q, k, v, layer, forward_batch, save_kv_cache)

    backend.forward_extend = forward_extend
    idle_rows_on_torch_native(backend)


def idle_rows_on_torch_native(backend):
    """With DP attention a rank that has fewer rows than another is given empty ones: of this length, as on AMX."""
    backend.get_cpu_graph_seq_len_fill_value = lambda self: 1


def dflash_on_cpu(module):
    """SGLang refuses DFlash on a CPU, but asks a platform that is not of its tree: this one says yes.

    With DP attention it wants CUDA or an NPU by name: that question is not put.
    """
    has_dp = module.attn_dp_enabled_of
    module.attn_dp_enabled_of = lambda args: args.speculative_algorithm != "DFLASH" and has_dp(args)

    class Platform:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

        def is_out_of_tree(self):
            return True

        def supports_speculative_algorithm(self, algorithm):
            return True

        def supports_speculative_draft_attention_backend(self, algorithm, backend):
            return backend == "torch_native"

        def get_default_speculative_draft_attention_backend(self, algorithm):
            return "torch_native"

    module.current_platform = Platform(module.current_platform)


def no_streams_on_cpu(module):
    """The DFlash worker says of each tensor which stream uses it: a CPU tensor has none and raises."""
    record_stream = module.torch.Tensor.record_stream

    def record(self, stream):
        return None if self.device.type == "cpu" else record_stream(self, stream)

    module.torch.Tensor.record_stream = record


def drafts_in_float32(module):
    """SGLang gives a drafter its input in bfloat16, whatever the drafter's own type is."""
    forward = module.DFlashDraftModel.forward

    def in_own_type(self, ids, positions, batch, input_embeds=None, **more):
        embeds = input_embeds if input_embeds is None else input_embeds.to(self.norm.weight.dtype)
        return forward(self, ids, positions, batch, embeds, **more)

    module.DFlashDraftModel.forward = in_own_type


def drafts_on_torch_native(module):
    """SGLang's own way to add a backend for drafts."""
    module.add_draft_attention_backend_choices(["torch_native"])


def controller_waits(module):
    """The controller of DP ranks spins until a message comes; on two cores it would take one from the ranks."""
    receive = module.sock_recv

    def sock_recv(socket, flags=0):
        socket.poll(1000)  # ends as soon as there is one
        return receive(socket, flags=flags)

    module.sock_recv = sock_recv


SHIMS = {
    "sglang.srt.models.dflash": drafts_in_float32,
    "sglang.srt.arg_groups.choices": drafts_on_torch_native,
    "sglang.srt.layers.attention.torch_native_backend": verify_on_torch_native,
    "sglang.srt.arg_groups.speculative_hook": dflash_on_cpu,
    "sglang.srt.speculative.dflash_worker_v2": no_streams_on_cpu,
    "sglang.srt.managers.data_parallel_controller": controller_waits,
}

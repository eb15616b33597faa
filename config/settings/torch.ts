import { choice, flag, text, whole } from '../toml/values.ts';
import { setting } from './setting.ts';

/** Keys of kind "torch". */
export const torch = {
  program: setting(
    text(),
    'of kind "torch": the Python that has its packages; by default looked for. Of kind "prime-rl": its checkout, or its Python',
  ),
  ranks: setting(
    whole(1),
    'of kind "torch" and "prime-rl": processes of a machine that share the weights and the batch, one on each GPU; by default as many as `gpu_ids` or `gpus` has',
    { neutral: 1, most: [64, 'one machine has no more GPUs', 'at most the GPUs of the machine'] },
  ),
  launcher: setting(
    choice('ratchet', 'torchrun'),
    'of kind "torch": what starts the ranks of a machine; ours imports PyTorch once for all of them',
    { default: 'ratchet' },
  ),
  load_in_4bit: setting(
    flag(),
    'of kind "torch": whether the base of adapters is held in 4 bits (NF4), by bitsandbytes; each rank holds all of it',
    { isLeftOut: true },
  ),
};

const leftOut = { isLeftOut: true } as const;
const precision = () => choice('bfloat16', 'float32');

/** Settings that PyTorch honours. Beside another trainer they are `requested` (requested.ts). */
export const honouredByTorch = {
  nodes: setting(
    whole(1),
    'of kind "torch" and "prime-rl": machines with so many ranks each; the others join this one ([how](../several-machines.md#a-trainer-on-several-machines))',
    { default: 1, most: [64, 'several nodes are more than was tried', 'fewer nodes'] },
  ),
  rank_timeout: setting(
    whole(1),
    'of kind "torch" and "prime-rl": seconds that ranks wait for one another; a group that gives no sign for so long is ended, and its step repeated',
    { default: 600, as: 'rankTimeoutS' },
  ),
  dtype: setting(
    precision(),
    'what PyTorch computes with, and what exported weights have; float32 when missing',
    leftOut,
  ),
  optimization_dtype: setting(
    precision(),
    'what PyTorch holds weights in training in, other than adapters; float32 when missing',
    leftOut,
  ),
  reduce_dtype: setting(precision(), 'what gradients of several ranks are added up in; float32 when missing', leftOut),
  attn: setting(
    choice('sdpa', 'eager', 'flash_attention_2', 'flash_attention_3', 'flash_attention_4', 'fa4', 'auto'),
    'the attention kernel; when missing, or "auto", flash attention where it is there, else sdpa',
    leftOut,
  ),
  compile: setting(flag(), 'whether the layers are compiled', leftOut),
  use_liger: setting(flag(), 'whether it computes with Liger’s kernels', leftOut),
  fsdp_cpu_offload: setting(flag(), 'whether weights, gradients and moments are in the memory of the CPU', leftOut),
  optim_cpu_offload: setting(flag(), 'whether moments are in the memory of the CPU', leftOut),
  freeze_moe_router: setting(flag(), 'whether routers of experts stay as they are', leftOut),
};

const inMemory = 'weights and moments are in the memory of the CPU anyway';

/**
 * What the embedded engine does in their place, and the value that asks for just that. It refuses to freeze routers that
 * would move (relations/kinds.ts).
 */
export const insteadOfTorch: Readonly<
  Record<
    Exclude<keyof typeof honouredByTorch, 'freeze_moe_router'>,
    { readonly does: string; readonly met?: string | boolean | number }
  >
> = {
  nodes: { does: 'one machine trains', met: 1 },
  rank_timeout: { does: 'one process waits for no other', met: 600 },
  dtype: { does: 'computed in float32', met: 'float32' },
  optimization_dtype: { does: 'weights are held in float32', met: 'float32' },
  reduce_dtype: { does: 'gradients are added up in float32', met: 'float32' },
  attn: { does: 'the embedded engine has one kind' },
  compile: { does: 'graphs are compiled in any case' },
  use_liger: { does: 'the embedded engine has kernels of its own', met: false },
  fsdp_cpu_offload: { does: inMemory, met: false },
  optim_cpu_offload: { does: inMemory, met: false },
};

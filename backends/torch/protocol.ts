import { z } from 'zod';
import { errorCodes, type ErrorCode } from '../../core/errors.ts';

/** Messages of python/ratchet_torch: one JSON object a line. */

/** A line is small; whatever is large is a file that a line names (python/ratchet_torch/wire.py). */
export const lineBytesMax = 4 * 1024 * 1024;

/** A group on several nodes, as each of them is told. */
export interface GroupOnNodes {
  /** Which node this is; requests come to the first, 0. */
  readonly index: number;
  /** The first of its ranks. */
  readonly first: number;
  /** Ranks of all nodes. */
  readonly world: number;
  /** Path of the socket on which this node reaches the rendezvous. */
  readonly store: string;
  /** The network interface that ranks listen on. */
  readonly interface?: string;
}

/** Settings of a group of ranks, as python/ratchet_torch reads them. */
export interface RankOptions {
  /** Ranks on each node. */
  readonly ranks: number;
  /** GPUs of the ranks, as the machine numbers them; by default the first ones that are visible. */
  readonly gpus?: readonly number[];
  readonly launcher?: 'ratchet' | 'torchrun';
  readonly threads: number;
  /** Precision of the computation and of exported weights; `float32` when left out. */
  readonly dtype?: string;
  /** Precision in which trained weights are held; `float32` when left out. */
  readonly optimization_dtype?: string;
  readonly reduce_dtype?: string;
  readonly ac_freq?: number;
  /** Kernel of attention; the best that is there when left out. */
  readonly attn?: string;
  readonly compile?: boolean;
  readonly use_liger?: boolean;
  readonly fsdp_cpu_offload?: boolean;
  readonly optim_cpu_offload?: boolean;
  readonly freeze_moe_router?: boolean;
  /** Holds the base of adapters in 4 bits. */
  readonly load_in_4bit?: boolean;
  /** Tokens of a micro-batch at least, where so many rows fit; the longest row's when left out. */
  readonly micro_tokens?: number;
  /** Bytes of a file of exported weights at most, in which there are several tensors; `5GB` when left out. */
  readonly shard_size?: string;
  readonly device?: string;
  /** How long ranks wait for one another, and Ratchet for a sign of their progress, before the group ends. */
  readonly timeout_s?: number;
}

const Listening = z.looseObject({ event: z.literal('listening') });
const Ready = z.looseObject({ event: z.literal('ready'), fingerprint: z.string(), pids: z.array(z.int()) });
const Progress = z.looseObject({ event: z.literal('progress') });
const Fatal = z.looseObject({
  event: z.literal('fatal'),
  code: z.string(),
  message: z.string(),
  /** Whether it may have ended because another node's ranks did. */
  is_echo: z.boolean().optional(),
});
const Answer = z.looseObject({
  id: z.int(),
  result: z.json().optional(),
  error: z.looseObject({ code: z.string(), message: z.string() }).optional(),
});
const Message = z.union([Listening, Ready, Progress, Fatal, Answer]);

export type Ready = z.infer<typeof Ready>;
export type Fatal = z.infer<typeof Fatal>;
export type Answer = z.infer<typeof Answer>;
type Message = z.infer<typeof Message>;

/** Throws on a line that is none of the protocol. */
export function readMessage(line: string): Message {
  return Message.parse(JSON.parse(line));
}

export function codeNamed(code: string): ErrorCode {
  return Object.hasOwn(errorCodes, code) ? (code as ErrorCode) : 'EngineDied';
}

import { kindsOf } from './kinds-of.ts';

/**
 * Facts about a kind of inference before it is opened. Messages, relations between settings and the handling of servers
 * use a trait, never a kind. Its keys are in config/settings/inference.ts, its adapter in backends/inference/.
 */
interface InferenceTraits {
  /** Description in the list of all kinds. */
  readonly is: string;
  /** Source of turns: servers of `url` or `endpoint_id`, the server that trains, or the user's code. */
  readonly asks: 'servers' | 'the trainer’s server' | 'code';
  /** The process that is started with a run whose file names no servers; null = none. */
  readonly starts: 'policy server' | 'vllm' | null;
  /** Prerequisites of a run, for people. */
  readonly install: string;
  /** Whether its memory, quantized weights and a teacher's folder are those of the embedded engine. */
  readonly engine: 'embedded' | 'its own';
  /** Probe of the servers' abilities before a run; null = the kind always has all of them. */
  readonly examinedAs: 'openai' | 'vllm' | null;
  /** Whether it reports log probabilities of the policy itself, even when sampling is truncated. */
  readonly tellsPolicy: boolean;
  /** Whether it scores given tokens, which a policy that teaches itself needs. */
  readonly scoresPrompts: boolean;
  /** Whether a turn in progress continues with new weights. */
  readonly changesInTurn: boolean;
  /** Whether servers keep the versions of a run that has ended until they are told, or lack room. */
  readonly keepsVersions: boolean;
  /** Whether it computes in float32: always, by the server's or its arguments' statement, or unknown. */
  readonly computesInFloat32: 'always' | 'said' | 'unknown';
}

export const inferences = {
  /** Ratchet's policy servers: many prompts in one request, each with a seed of its own. */
  embedded: {
    is: 'Ratchet’s policy servers',
    asks: 'servers',
    starts: 'policy server',
    install: 'nothing',
    engine: 'embedded',
    examinedAs: null,
    tellsPolicy: true,
    scoresPrompts: true,
    changesInTurn: false,
    keepsVersions: false,
    computesInFloat32: 'always',
  },
  openai: {
    is: 'any OpenAI-compatible servers that give token ids',
    asks: 'servers',
    starts: null,
    install: 'nothing here: its servers run already',
    engine: 'its own',
    examinedAs: 'openai',
    tellsPolicy: false,
    scoresPrompts: true,
    changesInTurn: false,
    keepsVersions: false,
    computesInFloat32: 'unknown',
  },
  vllm: {
    is: 'vLLM (started from this file unless `url` names one)',
    asks: 'servers',
    starts: 'vllm',
    install: 'vLLM in a Python, where it is started',
    engine: 'its own',
    examinedAs: 'vllm',
    tellsPolicy: false,
    scoresPrompts: true,
    changesInTurn: true,
    keepsVersions: true,
    computesInFloat32: 'said',
  },
  tinker: {
    is: 'the Tinker server that trains',
    asks: 'the trainer’s server',
    starts: null,
    install: 'nothing here',
    engine: 'its own',
    examinedAs: null,
    tellsPolicy: false,
    scoresPrompts: false,
    changesInTurn: false,
    keepsVersions: false,
    computesInFloat32: 'unknown',
  },
  module: {
    is: 'an inference of your own',
    asks: 'code',
    starts: null,
    install: 'what its file imports',
    engine: 'its own',
    examinedAs: null,
    tellsPolicy: true,
    scoresPrompts: false,
    changesInTurn: false,
    keepsVersions: false,
    computesInFloat32: 'unknown',
  },
} as const satisfies Readonly<Record<string, InferenceTraits>>;

export type InferenceKind = keyof typeof inferences;
export const inferenceKinds = kindsOf(inferences);

/** The process that is started with a run: its file names no servers, and its kind has such a process. */
export function startedWith({ kind, ...at }: Places): InferenceTraits['starts'] {
  return (at.url ?? null) === null && (at.endpoints ?? null) === null ? inferences[kind].starts : null;
}

interface Places {
  readonly kind: InferenceKind;
  readonly url?: string | readonly string[] | null;
  readonly endpoints?: object | null;
}

export function inferenceTraits({ kind }: { readonly kind: InferenceKind }): InferenceTraits {
  return inferences[kind];
}

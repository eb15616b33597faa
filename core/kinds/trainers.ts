import { kindsOf } from './kinds-of.ts';

/**
 * Facts about a kind of trainer before it is opened. Messages, relations between settings and the handling of a trainer
 * use a trait, never a kind. Its keys are in config/settings/trainer.ts, its adapter in backends/trainer/.
 */
interface TrainerTraits {
  /** Description in the list of all kinds. */
  readonly is: string;
  /**
   * The process that computes: the GPU worker itself, a child process of that worker, or a server started by others.
   */
  readonly process: 'worker' | 'child' | 'outside';
  /**
   * Author of its code. The user's code may crash its process at the same batch again and again, which pauses the run.
   */
  readonly code: 'ratchet' | 'user';
  /** Prerequisites of a run, for people. */
  readonly install: string;
  /** Settings that a run file needs beside the kind. */
  readonly needs: string;
  /** Files of the model that are needed here: all, or only its texts if a server has the weights. */
  readonly modelFiles: 'weights' | 'texts';
  /**
   * Rules of memory: those of the embedded engine, which refuses a model larger than this machine and can open its
   * versions for a chat; or the trainer's own, unknown here.
   */
  readonly engine: 'embedded' | 'its own';
  /** Whether it may get a GPU of this machine, by `provider` and `gpu_ids`. */
  readonly takesGpus: boolean;
  /**
   * Target of training. If adapters, they are what a file trains that says nothing of it, and the warm-up trains them as
   * well; all weights are trained where the file says so and the server takes them.
   */
  readonly trains: 'all weights or adapters' | 'adapters';
  /** The only alpha that its adapters can have, which are scaled by alpha / rank; null = the run file's. */
  readonly alpha: number | null;
  /** Digest of v0, if v0 is made here from the model's folder: the embedded engine's, or the trainer's own. */
  readonly baseDigest: 'engine' | 'trainer';
  /** Whether one batch may combine several losses, and rows with `echo`. */
  readonly severalLosses: boolean;
  /** Whether the warm-up may train on pairs (`[sft] loss = "dpo"`). */
  readonly pairs: boolean;
  /** Form of the user's own loss: a function of graphs, which is tried before a run; or the trainer's own form. */
  readonly customLoss: 'graph' | 'its own';
  /** Why all rows of a batch have one temperature; null if each may have its own. */
  readonly oneTemperature: string | null;
  /** Whether it computes activations again instead of keeping them where `ac_freq` says so; else that is its own affair. */
  readonly recomputes: boolean;
  /** Whether it can leave routers of experts as they are while it trains all weights. */
  readonly freezesRouters: boolean;
  /** Whether it computes on ranks, one on each GPU, with settings of PyTorch's. */
  readonly hasRanks: boolean;
  /** Whether it computes in float32, by which the canary compares: always, where its `dtype` says so, or unknown. */
  readonly computesInFloat32: 'always' | 'said' | 'unknown';
}

export const trainers = {
  onnx: {
    is: 'the embedded engine',
    process: 'worker',
    code: 'ratchet',
    install: 'nothing; for `provider = "cuda"` what `ratchet doctor` says',
    needs: 'nothing',
    modelFiles: 'weights',
    engine: 'embedded',
    takesGpus: true,
    trains: 'all weights or adapters',
    alpha: null,
    baseDigest: 'engine',
    severalLosses: true,
    pairs: true,
    customLoss: 'graph',
    oneTemperature: null,
    recomputes: true,
    freezesRouters: false,
    hasRanks: false,
    computesInFloat32: 'always',
  },
  torch: {
    is: 'PyTorch, by transformers and PEFT',
    process: 'child',
    code: 'ratchet',
    install: '`ratchet engine install torch`',
    needs: 'nothing, or `program`: a Python of yours with its packages',
    modelFiles: 'weights',
    engine: 'its own',
    takesGpus: true,
    trains: 'all weights or adapters',
    alpha: null,
    baseDigest: 'trainer',
    severalLosses: true,
    pairs: false,
    customLoss: 'graph',
    oneTemperature: null,
    recomputes: true,
    freezesRouters: true,
    hasRanks: true,
    computesInFloat32: 'said',
  },
  'prime-rl': {
    is: 'prime-rl’s own trainer',
    process: 'child',
    code: 'ratchet',
    install: 'prime-rl in a checkout of its own: `ratchet engine install prime-rl` says how',
    needs: '`program`: that checkout, or its Python; and `seq_len`',
    modelFiles: 'weights',
    engine: 'its own',
    takesGpus: true,
    trains: 'all weights or adapters',
    alpha: null,
    baseDigest: 'trainer',
    severalLosses: true,
    pairs: false,
    customLoss: 'graph',
    oneTemperature: null,
    recomputes: true,
    freezesRouters: true,
    hasRanks: true,
    computesInFloat32: 'unknown',
  },
  tinker: {
    is: 'a server of the Tinker API',
    process: 'outside',
    code: 'ratchet',
    install: 'nothing, or a server of the Tinker API where its GPUs are',
    needs: '`url` of a server of your own, or the key of the hosted service',
    modelFiles: 'texts',
    engine: 'its own',
    takesGpus: false,
    trains: 'adapters',
    alpha: 32,
    baseDigest: 'trainer',
    severalLosses: false,
    pairs: false,
    customLoss: 'graph',
    oneTemperature: 'a Tinker server trains log probabilities at temperature 1',
    recomputes: false,
    freezesRouters: false,
    hasRanks: false,
    computesInFloat32: 'unknown',
  },
  module: {
    is: 'a trainer of your own',
    process: 'worker',
    code: 'user',
    install: 'what its file imports',
    needs: '`import`: the file with it',
    modelFiles: 'weights',
    engine: 'its own',
    takesGpus: false,
    trains: 'all weights or adapters',
    alpha: null,
    baseDigest: 'trainer',
    severalLosses: false,
    pairs: false,
    customLoss: 'its own',
    oneTemperature: 'a trainer of your own is told one temperature for a whole batch',
    recomputes: false,
    freezesRouters: false,
    hasRanks: false,
    computesInFloat32: 'unknown',
  },
} as const satisfies Readonly<Record<string, TrainerTraits>>;

export type TrainerKind = keyof typeof trainers;
export const trainerKinds = kindsOf(trainers);

export function trainerTraits({ kind }: { readonly kind: TrainerKind }): TrainerTraits {
  return trainers[kind];
}

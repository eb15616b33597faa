import type { Adding } from './engine.ts';

/**
 * A Tinker server as SkyRL 0.3.0 is one, over the embedded engine, so that a run against it learns. It does what SkyRL was seen to do
 * when things go wrong: models are gone after a restart while sessions, promises and checkpoints are kept; an optim_step that is sent
 * twice is applied twice; a name that is taken is 409; failures of work are 400 with their words; a loss it does not know is 422;
 * sampling loads a checkpoint into the slot of its model, in training or not; a session without heartbeats loses its models.
 */
export interface StandInOptions {
  /** Its database, its checkpoints and its base model. */
  readonly folder: string;
  /** A preset of ours, or a folder of Hugging Face files. */
  readonly model: string;
  readonly port?: number;
  /** Slots for adapters, the base's among them. */
  readonly maxAdapters?: number;
  readonly sessionTimeoutMs?: number;
  /** Loads moments only where they are asked for, as the hosted service and later SkyRLs; 0.3.0 always does. */
  readonly heedsOptimizer?: boolean;
  /**
   * Behaves like the hosted service: requires this key, uses protobuf, adds up losses, samples from any checkpoint
   * whatever is loaded, and serves weights file by file.
   */
  readonly hostedKey?: string;
  /**
   * Holds one model at a time, like SkyRL's FSDP backend: a second one is refused, checkpoints are loaded only by the first
   * request of a model, and its latest weights are sampled, whatever is asked for.
   */
  readonly holdsOne?: boolean;
  /**
   * Like TuFT: passes travel in protobuf alone (JSON is 415), requests must come in the order of their numbers, a started
   * server restores its models from their newest checkpoints, and one that is unloaded takes its checkpoints along. An
   * archive is the address of a folder of its own machine. Samples are taken in sessions, which a restart forgets.
   */
  readonly isLikeTuft?: boolean;
  /** Samples what a model has saved last, whichever of its paths is asked for, like SkyRL's Megatron backend. */
  readonly samplesLatest?: boolean;
  /** Computes cross_entropy in place of any other loss, silently, like twinkle. */
  readonly replacesLosses?: boolean;
  /** Samples only where the base model is named beside the path, like twinkle. */
  readonly wantsBase?: boolean;
  readonly adding?: Adding;
  readonly ignoresAdam?: boolean;
  /** Samplers get the merged weights of the whole model, in a plain tar. */
  readonly merges?: boolean;
  readonly takesRankZero?: boolean;
  /** Tells no gradient's norm, and no loss. */
  readonly isSilent?: boolean;
  /** Tells no log probabilities of the rows that it is given. */
  readonly hidesLogprobs?: boolean;
  /** Milliseconds that each call takes beyond its arithmetic, by its route's last word. */
  readonly callMs?: Readonly<Record<string, number>>;
  /** Milliseconds of a sampled token, for any number of turns at once. */
  readonly tokenMs?: number;
  /** A file: a line for each answer that was fetched, `SampledLine`. Single tokens are no answers: they ask whether it lives. */
  readonly sampledLog?: string;
}

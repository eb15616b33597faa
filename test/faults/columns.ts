/** Columns of the fault matrix: the gaps of a step that a fault falls into. */
import { warmUpSteps } from './prime-rl-run.ts';

/** The longest answer where a chunk is to have both kinds: slower than finished rollouts are stored. */
const slowSampleMs = 2_000;

/** Trainer or sampler of a run that is neither a fake nor the embedded engine; or its way of sampling. */
export type EngineName = 'tinker' | 'torch' | 'prime-rl' | 'vllm' | 'agents' | SamplingName;

/** Ways of sampling in which groups are in play while steps train. */
export type SamplingName = 'level 1' | 'level 2';

/** A gap, by the failpoint in it. */
export interface Gap {
  readonly failpoint: string;
  /** Its passing in the second step, or where it comes once. */
  readonly at: number;
  /** The longest answer of the inference, where it matters here. */
  readonly sampleMs?: number;
  /** Further settings of its run, as `--key value` on the command line; none that changes its weights. */
  readonly overrides?: Readonly<Record<string, string>>;
  /** The same, of a run that looks for a better prompt meanwhile: compared with an undisturbed run of the same, and its outcome with that one's. */
  readonly hasBranch?: boolean;
  /** Only runs on this engine pass it. */
  readonly engine?: EngineName;
  /** The run continues as new in its second step: its stage's server suggests it early. */
  readonly continuesAsNew?: boolean;
}

export const columns = {
  // The run's folder has its settings, and its workflow does not know it.
  open: { failpoint: 'openRun.done', at: 1 },
  'warm-up': { failpoint: 'warmUp.done', at: 1 },
  // By an activity of its own, as for the first step; by the broadcast of the version that the round begins with; and by the batch before it.
  lease: { failpoint: 'lease.stored', at: 1 },
  'broadcast-lease': { failpoint: 'broadcast.leased', at: 1 },
  // Sampled by rounds: otherwise a busy machine's chunks may count as slow, and the window is filled beside the packing.
  'batch-lease': { failpoint: 'pack.leased', at: 1, engine: 'level 1', overrides: { tasks_per_minute: '1000000' } },
  generate: { failpoint: 'generate.part', at: 2, sampleMs: slowSampleMs },
  generated: { failpoint: 'play.generated', at: 2 },
  score: { failpoint: 'playGroups.done', at: 2 },
  // Groups are scored and stored while others of their chunk are in flight, before their run was notified.
  ended: { failpoint: 'play.stored', at: 2, engine: 'level 2' },
  // Of an agent: its call is with the model; the answer is stored and not given; its effect was begun and may have been made; it has ended.
  asked: { failpoint: 'call.asked', at: 30, engine: 'agents' },
  answered: { failpoint: 'call.stored', at: 30, engine: 'agents' },
  'once-effect': { failpoint: 'effect.begun', at: 12, engine: 'agents' },
  scoring: { failpoint: 'agent.scoring', at: 12, engine: 'agents' },
  plan: { failpoint: 'plan.stored', at: 2 },
  // Inside of a step on a Tinker server; the warm-up saves and loads as well.
  forward_backward: { failpoint: 'tinker.gradients', at: 2, engine: 'tinker' },
  optim_step: { failpoint: 'tinker.stepped', at: 2, engine: 'tinker' },
  save_weights: { failpoint: 'tinker.saved', at: 4, engine: 'tinker' },
  // Inside of a step of prime-rl's trainer, behind those of the warm-up: the batch is there, the version was made and is not taken.
  rank_files: { failpoint: 'prime-rl.given', at: warmUpSteps + 2, engine: 'prime-rl' },
  STABLE: { failpoint: 'prime-rl.done', at: warmUpSteps + 2, engine: 'prime-rl' },
  train: { failpoint: 'train.applied', at: 2 },
  trained: { failpoint: 'trainBatch.done', at: 2 },
  // The model of the next step, while this one's is sampled from.
  load_weights: { failpoint: 'tinker.loaded', at: 5, engine: 'tinker' },
  commit: { failpoint: 'commitStep.done', at: 3 },
  // A vLLM has one adapter more, or other weights, and is still paused, before this is recorded; the canary was
  // compared.
  load_lora_adapter: { failpoint: 'vllm.adapter', at: 2, engine: 'vllm' },
  reload_weights: { failpoint: 'vllm.exchanged', at: 3, engine: 'vllm' },
  canary: { failpoint: 'canary.compared', at: 2, engine: 'vllm' },
  broadcast: { failpoint: 'broadcastWeights.done', at: 3 },
  checkpoint: { failpoint: 'saveCheckpoint.done', at: 2 },
  // An evaluation beside the steps, in a workflow of its own.
  eval: {
    failpoint: 'evaluateChunk.done',
    at: 1,
    overrides: { 'eval.interval': '2', 'eval.num-examples': '8' },
  },
  // Of a branch that looks for a better prompt, and of its winner's last trial; the run waits for it.
  branch: { failpoint: 'answerSearch.done', at: 2, hasBranch: true },
  trial: { failpoint: 'recordTrial.done', at: 1, hasBranch: true },
  // The first activity of the second execution, which no other has, while its first workflow task is under way.
  'continue-as-new': { failpoint: 'readSpec.begun', at: 1, continuesAsNew: true },
} as const satisfies Record<string, Gap>;
export type Column = keyof typeof columns;

export const allColumns = Object.keys(columns) as Column[];

export function gapOf(column: Column): Gap {
  return columns[column];
}

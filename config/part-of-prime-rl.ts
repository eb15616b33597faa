import { isSftFile } from './dialects/prime-rl/prime-rl-sft.ts';
import type { Place } from './toml/problems.ts';
import { isTable, type Table } from './toml/tables.ts';

/**
 * Files of single prime-rl commands, which start no run of reinforcement learning: until November 2025 a run was three
 * files. They are recognized by their tables, before any dialect.
 */

interface Part {
  readonly what: string;
  /** Its successor. */
  readonly instead: string;
  /** Whether the file is one: its tables and keys at the top. */
  readonly is: (table: Table) => string | undefined;
}

/** The first of these keys in a table. */
const has =
  (...keys: readonly string[]) =>
  (table: Table): string | undefined =>
    keys.find((key) => table[key] !== undefined);

const tables =
  (...keys: readonly string[]) =>
  (table: Table): string | undefined =>
    keys.find((key) => isTable(table[key]));

const ofSampler = ['rewards', 'rollout_path', 'prompt_batch_size', 'rl_config', 'toploc'];

const oneFile =
  'its `rl` takes one file since November 2025, and so does `ratchet train`; or name them together: npx ratchet-rl rl --trainer @ FILE --orchestrator @ FILE';

/** Evaluations during a training, which have an interval and a list of environments. */
function isOfOrchestrator(evaluation: unknown): boolean {
  return (
    isTable(evaluation) &&
    ['interval', 'env', 'source', 'benchmarks', 'environment_ids'].some((key) => key in evaluation)
  );
}

const parts: readonly Part[] = [
  {
    what: 'a file of pretraining, as prime-rl’s repository had them until 2025',
    instead: 'Ratchet trains models that are there; begin with a file of `ratchet init`',
    is: has('name_model', 'type_model', 'diloco', 'hardware_failure'),
  },
  {
    what: 'a file of the sampler of 2025 (infer.py)',
    instead: `its sampling is [orchestrator.sampling] now, its environment [[orchestrator.env]]: ${oneFile}`,
    is: has(...ofSampler),
  },
  {
    what: 'a file of prime-rl’s `orchestrator` alone',
    instead: `put it below [orchestrator], and the trainer’s file below [trainer]: ${oneFile}`,
    is: (table) =>
      has('rollouts_per_prompt', 'async_level', 'environment', 'client', 'weights_path', 'micro_batch_size')(table) ??
      (has('rollouts_per_example', 'group_size', 'env')(table) === undefined
        ? undefined
        : tables('model', 'train')(table)) ??
      (isOfOrchestrator(table['eval']) ? tables('model')(table) : undefined),
  },
  {
    what: 'a file of prime-rl’s `trainer` alone',
    instead: `put it below [trainer], and the orchestrator’s file below [orchestrator]: ${oneFile}`,
    is: tables('optim', 'loss', 'scheduler', 'data', 'train', 'weights', 'weight_checkpoint', 'ac', 'compile', 'model'),
  },
  {
    what: 'a file of prime-rl’s `inference` alone: a server',
    instead: `put it below [inference] of a run file: ${oneFile}`,
    is: tables('parallel', 'server', 'vllm'),
  },
  {
    what: 'a file of prime-rl’s `trainer`, or of its evaluations, without a model',
    instead: `put it below the table of its command in a run file: ${oneFile}`,
    is: has('monitor', 'gpus_ids', 'benchmarks'),
  },
];

/** Recognizes a run file of any system by its top: a model by name, environments, or tables of prime-rl's processes. */
function isRunFile(table: Table): boolean {
  if (Array.isArray(table['env']) && isTable(table['model'])) return false; // an orchestrator's file
  if (['trainer', 'orchestrator', 'inference'].some((key) => isTable(table[key]))) {
    return isTable(table['trainer']) || isTable(table['orchestrator']) || Array.isArray(table['env']);
  }
  return (typeof table['model'] === 'string' && has(...ofSampler)(table) === undefined) || Array.isArray(table['env']);
}

interface PartOfRun extends Pick<Place, 'path'> {
  readonly expected: string;
  readonly received: string;
  readonly suggestion: string;
}

/** The problem of a file that is only part of a prime-rl run; undefined for any other file. */
export function partOfPrimeRl(table: Table): PartOfRun | undefined {
  if (isRunFile(table) || isSftFile(table)) return undefined;
  for (const { what, instead, is } of parts) {
    const path = is(table);
    if (path !== undefined) return { path, expected: 'a run file', received: what, suggestion: instead };
  }
  return undefined;
}

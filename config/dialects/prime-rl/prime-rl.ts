import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { copied, isTable, merged, setAt, type Table, tableOr, valueAt } from '../../toml/tables.ts';
import { prunedBatches, replacedGroups, setRunName, wholeBatches } from '../common-words.ts';
import type { Dialect, Own } from '../dialect.ts';
import { aboutAges, type Age, ageOf, proofOf, sayAge } from './prime-rl-ages.ts';
import { sayDifferences, sayOlderDefaults } from './prime-rl-differs.ts';
import { primeRlFields, primeRlTables } from './prime-rl-fields.ts';
import { setHosted } from './prime-rl-hosted.ts';
import { setLearned } from './prime-rl-learning.ts';
import {
  advantageHint,
  setAlike,
  theirDefaults,
  defaultTrainer,
  defaultTrainerSince08,
  type Version,
  warnOfOtherModels,
} from './prime-rl-meaning.ts';
import { setNoClipping, setOptimizer } from './prime-rl-optimizer.ts';
import { setRecomputation, withSwitches } from './prime-rl-memory.ts';
import { primeRlRenames } from './prime-rl-renames.ts';
import { setSampling, setSources, withSharedEnv } from './prime-rl-sources.ts';
import { setTemplate, setTruncation } from './prime-rl-sampling.ts';
import { agreed, found, hasTable, take, withoutNulls } from './prime-rl-words.ts';

const version: Version = {
  otherwise: 'refuse',
  wandb: ['monitors.wandb', 'trainer.monitors.wandb', 'orchestrator.monitors.wandb'],
  served: ['inference.vllm.max_model_len'],
  sampling: 'orchestrator.train.sampling',
  answers: 'max_completion_tokens',
};

const synonyms = {
  lr: 'lr',
  learning_rate: 'lr',
  max_tokens: 'max_completion_tokens',
  group_size: 'group_size',
  num_generations: 'group_size',
  env: 'source',
  weight: 'ratio',
};
const hints = {
  'trainer.model.ac':
    'write a table of its own: [trainer.model.ac] with freq = 1, which is every layer; "None" turns it off',
  'orchestrator.advantage': advantageHint,
};

/**
 * prime-rl since v0.5, in three ages: today's names, and earlier ones. A value at the top fills the tables below it; a
 * different one there is refused. Defaults are those of the file's age (prime-rl-ages.ts).
 */
function primeRlOf(age: Exclude<Age, '0.4'>, title: string, defaults: Table): Dialect {
  return {
    name: aboutAges[age].dialect,
    title,
    fields: primeRlFields,
    renames: primeRlRenames,
    defaults: { ...theirDefaults, ...defaults },
    prepare: (table) => withoutNulls(withSwitches(table, version), primeRl, primeRlTables),
    together: (written, own) => together(withInherited(written, own), own, age),
    proof: proofOf(age),
    mayBe: (table) => ageOf(table).age === age,
    synonyms,
    hints,
  };
}

export const primeRl: Dialect = primeRlOf('today', 'prime-rl since 27 August 2026', {
  ...replacedGroups,
  trainer: { ...defaultTrainerSince08, weight_decay: 0 },
});
export const primeRl09: Dialect = primeRlOf('0.9', 'prime-rl 0.9.0', {
  batch_fill: 'once',
  ...prunedBatches,
  trainer: defaultTrainerSince08,
});
export const primeRl05: Dialect = primeRlOf('0.5', 'prime-rl 0.5.0', { ...wholeBatches, trainer: defaultTrainer });

function together(written: Table, own: Own, age: Age): void {
  const said = sayAge(written, ageOf(own.asWritten));
  if (said !== undefined) own.warn(said);
  setRunName(own, valueAt(written, ['run', 'name']), ['run', 'name']);
  setHosted(written, own);
  setAlike(written, own, version);
  setModel(written, own);
  setGpus(written, own);
  setDeployment(written, own);
  setFilters(written, own, age);
  setSampling(written, own, version);
  setTemplate(written, own);
  setSources(written, own);
  setBatch(written, own);
  setServerArguments(written, own);
  setLearned(written, own, age);
  if (age === 'today') setTruncation(written, own);
  refuseLauncherVariables(written, own);
  setNoClipping(written, own, version);
  setOptimizer(written, own);
  sayDifferences(written, own, { ...version, evaluated: 'orchestrator.eval.source[]' });
  sayOlderDefaults(written, own);
}

/** Whether groups without a signal are replaced. */
function setFilters(written: Table, own: Own, age: Age): void {
  const pruned = found(written, 'orchestrator.train.filter_zero_advantages');
  if (pruned?.value === false) own.set(['post_batch_filters'], [], pruned.at);
  const [pre, ...post] = ['pre_batch_filters', 'post_batch_filters', 'filters'].map((key) =>
    found(written, `orchestrator.${key}`),
  );
  const constant = found(written, 'orchestrator.constant_trainer_batch_size');
  const isFilledOnce = constant?.value === false || [pre, ...post].some((one) => one !== undefined);
  if (age !== 'today' || !isFilledOnce) return;
  if (pre === undefined) own.set(['pre_batch_filters'], [], constant?.at);
  const { post_batch_filters: taken, ...batches } = prunedBatches;
  if (post.every((one) => one === undefined)) own.set(['post_batch_filters'], taken, constant?.at);
  for (const [key, value] of Object.entries({ batch_fill: 'once', ...batches })) own.set([key], value, constant?.at);
}

/**
 * Since autumn 2026 all sources inherit from `[orchestrator.train]`: `group_size` and `algo`, earlier in
 * `[orchestrator]`, and `env`, as in `[orchestrator.eval]`.
 */
function withInherited(written: Table, own: Own): Table {
  const table = copied(written);
  const train = tableOr(valueAt(table, ['orchestrator', 'train']));
  for (const key of ['group_size', 'algo']) {
    const value = train[key];
    const to = ['orchestrator', key];
    if (value === undefined) continue;
    if (valueAt(table, to) === undefined) {
      own.moved(['orchestrator', 'train', key], to);
      setAt(table, to, value);
    } else {
      const [at, other] = [['orchestrator', 'train', key], to];
      own.agree({ value: valueAt(table, to), at: other }, { value, at });
    }
  }
  const { algo, source } = train;
  if (isTable(algo) && Array.isArray(source)) {
    train['source'] = source.map((one: unknown) => {
      const its = tableOr(tableOr(one)['algo']);
      const isOther = (its['type'] ?? algo['type'] ?? 'grpo') !== (algo['type'] ?? 'grpo');
      return isTable(one) && isTable(one['algo']) && !isOther ? { ...one, algo: merged(algo, its) } : one;
    });
  }
  return ['train', 'eval'].reduce((made, part) => withSharedEnv(made, ['orchestrator', part]), table);
}

function setModel(written: Table, own: Own): void {
  const places = ['trainer.model.name', 'orchestrator.model.name', 'inference.vllm.model'];
  if (take(written, own, 'model.name', ['model'])) {
    for (const place of places) agreed(written, own, ['model.name', place], version);
  } else {
    const first = places.find((place) => found(written, place) !== undefined);
    if (first !== undefined) take(written, own, first, ['model']);
    warnOfOtherModels(written, own, places);
  }
  const tokenizers = ['tokenizer.name', 'trainer.tokenizer.name', 'orchestrator.tokenizer.name'];
  for (const place of tokenizers.slice(1)) agreed(written, own, ['tokenizer.name', place], version);
  warnOfOtherModels(written, own, tokenizers);
}

function setGpus(written: Table, own: Own): void {
  for (const [role, number] of [
    ['trainer', 'num_train_gpus'],
    ['inference', 'num_infer_gpus'],
  ] as const) {
    if (found(written, `${role}_gpu_ids`) === undefined) continue;
    own.warn(
      `${role}_gpu_ids is an older way: prime-rl takes the number of them since 0.5, as deployment.${number}. It is read as that.`,
    );
  }
  setRecomputation(written, own, version);
}

/** Numbers of GPUs, on one node or on several. */
export function setDeployment(written: Table, own: Own): void {
  const at = (key: string): KeyPath => found(written, `deployment.${key}`)?.at ?? ['deployment'];
  const number = (key: string, fallback: number): number =>
    Number(found(written, `deployment.${key}`)?.value ?? fallback);
  if (!hasTable(written, 'deployment')) return;
  const perNode = number('gpus_per_node', 8);
  if (found(written, 'deployment.type')?.value === 'multi_node') {
    if (found(written, 'deployment.num_train_nodes') === undefined) {
      own.refuse({ paths: [['deployment', 'num_train_nodes']], expected: 'an integer ≥ 1', received: 'nothing' });
    }
    const nodes = number('num_infer_nodes', 1) * number('num_infer_replicas', 1);
    own.set(['trainer', 'gpus'], perNode, at('gpus_per_node'));
    own.set(['trainer', 'nodes'], number('num_train_nodes', 1), at('num_train_nodes'));
    own.set(['inference', 'gpus'], nodes * perNode, at('num_infer_nodes'));
    if (found(written, 'slurm') !== undefined) return;
    const expected = '"single_node", or a [slurm] beside it';
    own.refuse({ paths: [at('type')], expected, received: '"multi_node"' });
    return;
  }
  const [train, infer] = [number('num_train_gpus', 1), number('num_infer_gpus', 1)];
  own.set(['trainer', 'gpus'], train, at('num_train_gpus'));
  own.set(['inference', 'gpus'], infer, at('num_infer_gpus'));
  if (train + infer <= perNode) return;
  const expected = `with num_infer_gpus (${infer}) at most gpus_per_node (${perNode})`;
  own.refuse({ paths: [at('num_train_gpus'), at('num_infer_gpus')], expected, received: String(train) });
}

function setBatch(written: Table, own: Own): void {
  const size = take(written, own, 'orchestrator.batch_size', ['batch_size']);
  const tokens = found(written, 'orchestrator.token_batch_size');
  if (!tokens) return;
  if (size) {
    const expected = `nothing beside batch_size (${String(size.value)}): a batch has one size`;
    own.refuse({ paths: [tokens.at, size.at], expected, received: String(tokens.value) });
    return;
  }
  own.set(['token_batch_size'], tokens.value, tokens.at);
  // A row is at most this long, so a batch has at least this many rollouts.
  const [group, longest] = ([['rollouts_per_example'], ['seq_len']] as const).map((key) => Number(own.get(key)));
  const groups = Math.max(1, Math.floor(Number(tokens.value) / longest! / group!));
  own.set(['batch_size'], groups * group!, tokens.at);
  own.warn(
    `${formatPath(tokens.at)}: a batch is whole groups here, up to the first with which it has ${String(tokens.value)} tokens; prime-rl cuts it between the rollouts of a group.`,
  );
}

/** Arguments of vLLM beyond those that are known here. */
export function setServerArguments(written: Table, own: Own): void {
  for (const table of ['vllm', 'vllm_extra']) {
    const at = ['inference', table];
    const said = valueAt(written, at);
    if (!isTable(said)) continue;
    const further = Object.entries(said).filter(([key]) => !Object.hasOwn(primeRlFields, `inference.vllm.${key}`));
    for (const [key, value] of further) {
      own.set(['inference', 'vllm', key.replaceAll('-', '_')], value, [...at, key]);
    }
    if (further.length === 0) continue;
    own.warn(
      `inference.${table}: ${further.map(([key]) => key).join(', ')} ${further.length === 1 ? 'is' : 'are'} no argument that prime-rl knows; passed on to vLLM as written.`,
    );
  }
}

function refuseLauncherVariables(written: Table, own: Own): void {
  const set = Object.keys((found(written, 'env_vars')?.value ?? {}) as Table).filter((name) =>
    launcherOwns.includes(name),
  );
  if (set.length === 0) return;
  const expected = 'variables that prime-rl’s launcher does not set itself';
  own.refuse({ paths: [['env_vars', set[0]!]], expected, received: set.join(', ') });
}

const launcherOwns: readonly string[] = [
  'CUDA_VISIBLE_DEVICES',
  'PRL_RUN_ID',
  'PRL_RUN_NAME',
  'WANDB_RUN_ID',
  'WANDB_SHARED_FINISHER',
  'WANDB_SHARED_LABEL',
  'WANDB_SHARED_MODE',
  'WANDB_SHARED_PRIMARY',
];

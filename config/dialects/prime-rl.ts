import { formatPath, type KeyPath } from '../positions.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import { prunedBatches, setExtraBody, setRunName } from './common-words.ts';
import type { Dialect, Own } from './dialect.ts';
import { placed, placesOf } from './places.ts';
import { setAlgorithm } from './prime-rl-algorithms.ts';
import { sayDifferences, sayOlderDefaults } from './prime-rl-differs.ts';
import { primeRlFields, primeRlTables } from './prime-rl-fields.ts';
import {
  advantageHint,
  setAlike,
  setAnswerLimit,
  usual,
  usualTrainerToday,
  type Version,
  warnOfOtherModels,
} from './prime-rl-meaning.ts';
import { setNoClipping, setOptimizer } from './prime-rl-optimizer.ts';
import { setRecomputation, withSwitches } from './prime-rl-memory.ts';
import { primeRlRenames } from './prime-rl-renames.ts';
import { sentAnyway, setSources } from './prime-rl-sources.ts';
import { setLearning } from './prime-rl-teacher.ts';
import { agreed, found, hasTable, take, withoutNulls } from './prime-rl-words.ts';

/**
 * prime-rl since v0.5: today's names (0.8.1), and those that fields had before. A value at the top fills the tables below it;
 * another one there is refused. What is not written has today's defaults.
 */
export const primeRl: Dialect = {
  name: 'prime-rl',
  title: 'prime-rl 0.8.1',
  fields: primeRlFields,
  renames: primeRlRenames,
  defaults: {
    ...usual,
    batch_fill: 'once',
    ...prunedBatches,
    trainer: { ...usualTrainerToday, loss: { type: 'dppo' } },
  },
  prepare: (table) => withoutNulls(withSwitches(table, version), primeRl, primeRlTables),
  together,
  proof: (table) => {
    if (!isTable(table['orchestrator'] ?? table['trainer'])) return undefined;
    // Ours has [inference.vllm] as well, beside a model that is a text.
    const served = typeof table['model'] === 'string' ? [] : ['inference.vllm'];
    return [
      'orchestrator.train',
      'orchestrator.group_size',
      'orchestrator.algo',
      'deployment',
      'monitors',
      ...served,
    ].find((path) => valueAt(table, path.split('.')) !== undefined);
  },
  synonyms: {
    lr: 'lr',
    learning_rate: 'lr',
    max_tokens: 'max_completion_tokens',
    group_size: 'group_size',
    num_generations: 'group_size',
    env: 'source',
    weight: 'ratio',
  },
  hints: {
    'trainer.model.ac':
      'write a table of its own: [trainer.model.ac] with freq = 1, which is every layer; "None" turns it off',
    'orchestrator.advantage': advantageHint,
  },
};

const version: Version = {
  otherwise: 'refuse',
  wandb: ['monitors.wandb', 'trainer.monitors.wandb', 'orchestrator.monitors.wandb'],
  served: ['inference.vllm.max_model_len'],
  sampling: 'orchestrator.train.sampling',
  answers: 'max_completion_tokens',
};

function together(written: Table, own: Own): void {
  setRunName(own, valueAt(written, ['run', 'name']), ['run', 'name']);
  setAlike(written, own, version);
  setModel(written, own);
  setGpus(written, own);
  setDeployment(written, own);
  const pruned = found(written, 'orchestrator.train.filter_zero_advantages');
  if (pruned?.value === false) own.set(['post_batch_filters'], [], pruned.at);
  setSampling(written, own);
  setSources(written, own);
  setBatch(written, own);
  setServerArguments(written, own);
  if (setLearning(written, own) === 'rl') setLoss(written, own);
  setAlgorithm(written, own);
  refuseLauncherVariables(written, own);
  setNoClipping(written, own, version);
  setOptimizer(written, own);
  sayDifferences(written, own, { ...version, evaluated: 'orchestrator.eval.source[]' });
  sayOlderDefaults(written, own);
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

function setDeployment(written: Table, own: Own): void {
  const at = (key: string): KeyPath => found(written, `deployment.${key}`)?.at ?? ['deployment'];
  const number = (key: string, usual: number): number => Number(found(written, `deployment.${key}`)?.value ?? usual);
  if (!hasTable(written, 'deployment')) return;
  const perNode = number('gpus_per_node', 8);
  if (found(written, 'deployment.type')?.value === 'multi_node') {
    if (found(written, 'deployment.num_train_nodes') === undefined) {
      own.refuse({ paths: [['deployment', 'num_train_nodes']], expected: 'an integer ≥ 1', received: 'nothing' });
    }
    const nodes = number('num_infer_nodes', 1) * number('num_infer_replicas', 1);
    own.set(['trainer', 'gpus'], Math.max(1, number('num_train_nodes', 1) * perNode), at('num_train_nodes'));
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
  // A row is no longer than this: a batch has as many rollouts at least.
  const [group, longest] = ([['rollouts_per_example'], ['seq_len']] as const).map((key) => Number(own.get(key)));
  const groups = Math.max(1, Math.floor(Number(tokens.value) / longest! / group!));
  own.set(['batch_size'], groups * group!, tokens.at);
  own.warn(
    `${formatPath(tokens.at)}: a batch is whole groups here, up to the first with which it has ${String(tokens.value)} tokens; prime-rl cuts it between the rollouts of a group.`,
  );
}

function setSampling(written: Table, own: Own): void {
  const at = version.sampling.split('.');
  const tokens = found(written, `${version.sampling}.${version.answers}`);
  take(written, own, `${version.sampling}.temperature`, ['sampling', 'temperature']);
  if (tokens) setAnswerLimit(own, ['sampling'], tokens.value, tokens.at);
  setExtraBody(own, written, { at, ours: ['sampling'], sent: sentAnyway });
  for (const path of ['orchestrator.eval.sampling', 'orchestrator.eval.source[].sampling']) {
    const ours = path.includes('[]') ? 'eval.env[].sampling' : 'eval.sampling';
    for (const each of placesOf(path, written)) setExtraBody(own, written, { at: each, ours: placed(ours, each) });
  }
}

/** What vLLM is to be told beyond the arguments that are known here. */
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

/** prime-rl's losses are ours: its default is dppo. */
function setLoss(written: Table, own: Own): void {
  const at = (key: string) => ['trainer', 'loss', key];
  const type = found(written, 'trainer.loss.type');
  const meant = { ipo_mask_low: 0.2, ipo_mask_high: 0.2, ...(type?.value === 'ipo' ? {} : { type: 'default' }) };
  for (const [key, value] of Object.entries(meant)) {
    const said = found(written, `trainer.loss.${key}`);
    if (said) own.refuseUnless(value, said, 'the embedded engine computes the losses "default" and "ipo"');
  }
  if (type?.value === 'ipo') own.set(at('type'), 'ipo', at('type'));
  for (const [key, of, to] of [
    ['dppo_mask_low', 'default', ['mask_low']],
    ['dppo_mask_high', 'default', ['mask_high']],
    ['ipo_threshold', 'ipo', ['mask_low', 'mask_high']],
  ] as const) {
    const bound = found(written, `trainer.loss.${key}`);
    if (!bound) continue;
    if ((type?.value ?? 'default') === of) for (const ours of to) own.set(at(ours), bound.value, at(key));
    else {
      const received = `type = ${JSON.stringify(type?.value ?? 'default')}`;
      own.refuse({ paths: [at(key), at('type')], expected: `type = "${of}" beside it`, received });
    }
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

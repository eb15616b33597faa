import { formatPath, type KeyPath } from '../positions.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import type { Dialect, Own } from './dialect.ts';
import { primeRlHeadFields, primeRlHeadTables } from './prime-rl-head-fields.ts';
import { placed, placesOf } from './places.ts';
import { sentAnyway, setSources } from './prime-rl-head-sources.ts';
import { setLearning } from './prime-rl-teacher.ts';
import {
  refuseOtherOptimizers,
  refuseUnless,
  setAnswerLimit,
  setAsyncLevel,
  setCheckpoints,
  setExtraBody,
  setLongestAnswers,
  setLora,
  setMaxSteps,
  setScheduler,
  setWandb,
  warnOfLengths,
  warnOfOtherModels,
} from './prime-rl-meaning.ts';
import { primeRlRenames } from './prime-rl-renames.ts';
import { agreed, type Found, found, hasTable, setServers, withoutNulls } from './prime-rl-words.ts';

/**
 * prime-rl since v0.5: today's names (0.8.1), and those that fields had before. A value at the top fills the tables below it;
 * another one there is refused. What is not written has today's defaults.
 */
export const primeRl: Dialect = {
  name: 'prime-rl',
  title: 'prime-rl 0.8.1',
  fields: primeRlHeadFields,
  renames: primeRlRenames,
  defaults: {
    model: 'Qwen/Qwen3-0.6B',
    learning_rate: 1e-6,
    seed: 42,
    rollouts_per_example: 2,
    seq_len: 2048,
    sampling: { max_tokens: 2048 },
    trainer: {
      ac_freq: 1,
      ac_offloading: true,
      optim_cpu_offload: true,
      weight_decay: 0.01,
      loss: { type: 'dppo' },
    },
  },
  prepare: (table) => withoutNulls(() => primeRl, primeRlHeadTables)(withSwitches(table)),
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
    'orchestrator.advantage':
      'prime-rl would train on raw rewards; for that write a function of yours and name it in [ratchet.trainer.advantage] import',
  },
};

/** Tables that are on unless they are "None". */
function withSwitches(table: Table): Table {
  const model = valueAt(table, ['trainer', 'model']);
  if (!isTable(model)) return table;
  const off: Table = {
    ...(model['ac'] === 'None' ? { ac: { freq: 0 } } : {}),
    ...(model['ac_offloading'] === 'None' ? { ac_offloading: { max_inflight_activations: 0 } } : {}),
  };
  return { ...table, trainer: { ...(table['trainer'] as Table), model: { ...model, ...off } } };
}

const shared = { otherwise: 'refuse' } as const;

function together(written: Table, own: Own): void {
  const maxSteps = setMaxSteps(written, own, shared);
  setName(written, own);
  setModel(written, own);
  setLengths(written, own);
  setGpus(written, own);
  setServers(own);
  setCheckpoints(written, own, maxSteps, shared);
  setWandb(written, own, ['monitors.wandb', 'trainer.monitors.wandb', 'orchestrator.monitors.wandb'], shared);
  setScheduler(written, own, maxSteps);
  setLora(written, own);
  setAsyncLevel(written, own, shared);
  setBatch(written, own);
  setSampling(written, own);
  setSources(written, own);
  setServerArguments(written, own);
  if (setLearning(written, own) === 'rl') setLoss(written, own);
  refuseOtherOptimizers(written, own);
  refuseOthers(written, own);
}

/** A run's name is a folder's and a workflow's as well. */
function setName(written: Table, own: Own): void {
  const name = found(written, 'run.name');
  if (typeof name?.value !== 'string') return;
  const plain = name.value
    .toLowerCase()
    .replaceAll(/[^a-z0-9._-]+/g, '-')
    .replaceAll(/^[^a-z0-9]+|(?<![^a-z0-9])[^a-z0-9]+$/g, '')
    .slice(0, 64);
  own.set(['name'], plain, name.at);
  if (plain !== name.value)
    own.warn(`the run is called ${plain} here: its name is a folder’s and a workflow’s as well.`);
}

function setModel(written: Table, own: Own): void {
  const places = ['trainer.model.name', 'orchestrator.model.name', 'inference.vllm.model'];
  const name = found(written, 'model.name');
  if (name) {
    own.set(['model'], name.value, name.at);
    for (const place of places) agreed(written, own, ['model.name', place], shared);
  } else {
    const first = places.map((place) => found(written, place)).find((place) => place !== undefined);
    if (first) own.set(['model'], first.value, first.at);
    warnOfOtherModels(written, own, String(own.get(['model'])), places);
  }
  const tokenizers = ['tokenizer.name', 'trainer.tokenizer.name', 'orchestrator.tokenizer.name'];
  agreed(written, own, ['tokenizer.name', 'trainer.tokenizer.name'], shared);
  agreed(written, own, ['tokenizer.name', 'orchestrator.tokenizer.name'], shared);
  warnOfOtherModels(written, own, String(own.get(['model'])), tokenizers);
}

const lengthUsual = 2048;

/** Rows are cut at the orchestrator's length; the trainer's must be as long. */
function setLengths(written: Table, own: Own): void {
  const [all, trained, collected] = ['seq_len', 'trainer.model.seq_len', 'orchestrator.seq_len'].map((path) =>
    found(written, path),
  );
  if (all) agreed(written, own, ['seq_len', 'trainer.model.seq_len', 'orchestrator.seq_len'], shared);
  const length = all ?? collected;
  const [longest, cut] = [Number(trained?.value ?? lengthUsual), Number(collected?.value ?? lengthUsual)];
  if (!all && longest < cut) {
    own.refuse({
      paths: [trained?.at ?? collected!.at, collected?.at ?? trained!.at],
      expected: `at least orchestrator.seq_len (${cut}), or one seq_len at the top for both`,
      received: trained ? String(longest) : `nothing, which is trainer.model.seq_len = ${longest}`,
    });
  } else if (!all && trained && !collected) {
    own.warn(`${formatPath(trained.at)} has no effect: rows are cut at orchestrator.seq_len, which is ${lengthUsual}.`);
  }
  if (length) own.set(['seq_len'], length.value, length.at);
  const served = found(written, 'inference.vllm.max_model_len');
  if (served) own.set(['inference', 'vllm', 'max_model_len'], served.value, served.at);
  warnOfLengths(own, length, served);
  setLongestAnswers(own, { served, length });
}

function setGpus(written: Table, own: Own): void {
  for (const role of ['trainer', 'inference']) {
    const ids = found(written, `${role}_gpu_ids`);
    if (!Array.isArray(ids?.value)) continue;
    own.set([role, 'gpus'], ids.value.length, ids.at);
    own.set([role, 'gpu_ids'], ids.value, ids.at);
    own.warn(
      `${role}_gpu_ids is an older way: prime-rl takes the number of them since 0.5, as deployment.num_${role === 'trainer' ? 'train' : 'infer'}_gpus. It is read as that.`,
    );
  }
  setDeployment(written, own);
  const ac = ['trainer', 'model', 'ac'];
  const freq = found(written, 'trainer.model.ac.freq');
  if (freq) own.set(['trainer', 'ac_freq'], freq.value === 0 ? undefined : freq.value, freq.at);
  else if (hasTable(written, 'trainer.model.ac')) own.set(['trainer', 'ac_freq'], 1, ac);
  const waiting = found(written, 'trainer.model.ac_offloading.max_inflight_activations');
  if (waiting?.value === 0) own.set(['trainer', 'ac_offloading'], undefined, waiting.at);
  if (hasTable(written, 'trainer.model.compile'))
    own.set(['trainer', 'compile'], true, ['trainer', 'model', 'compile']);
  const [weights, moments] = ['fsdp_cpu_offload', 'optim_cpu_offload'].map((key) =>
    found(written, `trainer.model.${key}`),
  );
  if (weights?.value !== true) return;
  if (moments === undefined || moments.value === true) {
    const expected = 'false: fsdp_cpu_offload beside it moves the moments already';
    own.refuse({
      paths: [moments?.at ?? ['trainer', 'model', 'optim_cpu_offload'], weights.at],
      expected,
      received: moments ? 'true' : 'nothing, which is true',
    });
  }
}

function setDeployment(written: Table, own: Own): void {
  const at = (key: string): Found | undefined => found(written, `deployment.${key}`);
  const number = (key: string, usual: number): number => Number(at(key)?.value ?? usual);
  if (!hasTable(written, 'deployment')) return;
  const place: KeyPath = ['deployment'];
  const perNode = number('gpus_per_node', 8);
  if (at('type')?.value === 'multi_node') {
    if (at('num_train_nodes') === undefined) {
      own.refuse({ paths: [[...place, 'num_train_nodes']], expected: 'an integer ≥ 1', received: 'nothing' });
    }
    own.set(
      ['trainer', 'gpus'],
      Math.max(1, number('num_train_nodes', 1) * perNode),
      at('num_train_nodes')?.at ?? place,
    );
    const nodes = number('num_infer_nodes', 1) * number('num_infer_replicas', 1);
    own.set(['inference', 'gpus'], nodes * perNode, at('num_infer_nodes')?.at ?? place);
    if (found(written, 'slurm') === undefined) {
      own.refuse({
        paths: [at('type')!.at],
        expected: '"single_node", or a [slurm] beside it',
        received: '"multi_node"',
      });
    }
    return;
  }
  const [train, infer] = [number('num_train_gpus', 1), number('num_infer_gpus', 1)];
  own.set(['trainer', 'gpus'], train, at('num_train_gpus')?.at ?? place);
  own.set(['inference', 'gpus'], infer, at('num_infer_gpus')?.at ?? place);
  if (train + infer <= perNode) return;
  own.refuse({
    paths: [at('num_train_gpus')?.at ?? place, at('num_infer_gpus')?.at ?? place],
    expected: `with num_infer_gpus (${infer}) at most gpus_per_node (${perNode})`,
    received: String(train),
  });
}

function setBatch(written: Table, own: Own): void {
  const [size, tokens] = ['batch_size', 'token_batch_size'].map((key) => found(written, `orchestrator.${key}`));
  if (size) own.set(['batch_size'], size.value, size.at);
  if (!tokens) return;
  const expected = size
    ? `nothing beside batch_size (${String(size.value)}): a batch has one size`
    : 'batch_size: a batch is so many rollouts here, and each counts alike';
  own.refuse({ paths: [tokens.at, ...(size ? [size.at] : [])], expected, received: String(tokens.value) });
}

function setSampling(written: Table, own: Own): void {
  const at = ['orchestrator', 'train', 'sampling'];
  const [temperature, tokens] = ['temperature', 'max_completion_tokens'].map((key) =>
    found(written, [...at, key].join('.')),
  );
  const course = [...at, 'temp_scheduler'];
  const scheduler = valueAt(written, course);
  if (isTable(scheduler)) {
    if (temperature) {
      const expected = `nothing beside temperature (${String(temperature.value)}): the temperature is one number or has a course`;
      own.refuse({ paths: [course, temperature.at], expected, received: 'a table' });
    }
    own.set(['sampling', 'temperature'], scheduler['start_temperature'] ?? 1, course);
  }
  if (temperature) own.set(['sampling', 'temperature'], temperature.value, temperature.at);
  if (tokens) setAnswerLimit(own, ['sampling'], tokens.value, tokens.at);
  setExtraBody(written, own, at, ['sampling'], sentAnyway);
  if (hasTable(written, 'orchestrator.eval.sampling')) {
    setExtraBody(written, own, ['orchestrator', 'eval', 'sampling'], ['eval', 'sampling'], {});
  }
  for (const at of placesOf('orchestrator.eval.source[].sampling', written)) {
    setExtraBody(written, own, at, placed('eval.env[].sampling', at), {});
  }
}

/** What vLLM is to be told beyond the arguments that are known here. */
function setServerArguments(written: Table, own: Own): void {
  for (const table of ['vllm', 'vllm_extra']) {
    const at = ['inference', table];
    const said = valueAt(written, at);
    if (!isTable(said)) continue;
    const further = Object.entries(said).filter(([key]) => !Object.hasOwn(primeRlHeadFields, `inference.vllm.${key}`));
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
  const usual = { type: 'default', ipo_mask_low: 0.2, ipo_mask_high: 0.2 };
  const engine = 'the embedded engine computes the losses "default" and "ipo"';
  for (const [key, value] of Object.entries(usual)) {
    if (key !== 'type' || type?.value !== 'ipo') refuseUnless(written, own, `trainer.loss.${key}`, value, engine);
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

function refuseOthers(written: Table, own: Own): void {
  const bench = 'a bench trains on made-up data; see `npm run bench`';
  const centered = 'the advantage is the reward less the mean of its group';
  const others: readonly (readonly [string, unknown, string])[] = [
    ['bench', false, bench],
    ['orchestrator.bench', false, bench],
    ['trainer.model.debug.random_init', false, 'weights are those of the model; for others name a preset'],
    ['orchestrator.advantage.type', 'default', centered],
    ['orchestrator.advantage.length_weighted_mean', false, centered],
    ['orchestrator.advantage.length_weighted_baseline', false, centered],
    ['orchestrator.verification.enabled', true, 'without rewards there is nothing to learn from'],
    ['orchestrator.buffer.skip_verification', false, 'without rewards there is nothing to learn from'],
    ['orchestrator.mask_env_responses', true, 'what an environment says is never trained on'],
  ];
  for (const [path, usual, because] of others) refuseUnless(written, own, path, usual, because);
  const algo = found(written, 'orchestrator.algo');
  if (algo) refuseOtherAlgorithms(own, algo);
  const set = Object.keys((found(written, 'env_vars')?.value ?? {}) as Table).filter((name) =>
    launcherOwns.includes(name),
  );
  if (set.length > 0) {
    const expected = 'variables that prime-rl’s launcher does not set itself';
    own.refuse({ paths: [['env_vars', set[0]!]], expected, received: set.join(', ') });
  }
  for (const pool of ['easy', 'hard']) {
    const fraction = found(written, `orchestrator.buffer.${pool}_fraction`);
    if (fraction && fraction.value !== 0) {
      own.warn(`${formatPath(fraction.at)} has no effect: a run goes on with the pools it had.`);
    }
  }
  if (hasTable(written, 'resume') && found(written, 'resume.step') === undefined)
    own.set(['resume', 'step'], -1, ['resume']);
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

/** grpo, without a penalty of lengths, is the reward less the mean of its group. */
function refuseOtherAlgorithms(own: Own, { value, at }: Found): void {
  const { type = 'grpo', length_penalty: penalty = null, ...rest } = isTable(value) ? value : {};
  if (type === 'sft' || type === 'opd') return; // prime-rl-teacher.ts
  const { sampling, ...others } = rest;
  const source = isTable(sampling) ? (sampling['source'] ?? 'policy') : 'policy';
  const isPlain = type === 'grpo' && penalty === null && source === 'policy' && Object.keys(others).length === 0;
  if (isPlain) return;
  own.refuse({
    paths: [at],
    expected: 'type = "grpo" alone, "opd" or "sft": the advantage is the reward less the mean of its group',
    received: JSON.stringify(value),
  });
}

import { formatPath } from '../positions.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import type { Dialect, Own } from './dialect.ts';
import { primeRl04Fields, primeRl04Tables } from './prime-rl-04-fields.ts';
import {
  refuseOtherOptimizers,
  refuseUnless,
  refuseUnlessLess,
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
import { setScoringTeacher, teachesAlone } from './prime-rl-teacher.ts';
import { agreed, type Found, found, hasTable, setServers, withoutNulls } from './prime-rl-words.ts';

/**
 * prime-rl v0.4.0 (2026-02): one file for `rl`, as its documents of that time show it. A value at the top wins over the same
 * one in a table below, silently there, with a warning here.
 */
export const primeRl04: Dialect = {
  name: 'prime-rl-0.4',
  title: 'prime-rl 0.4',
  fields: primeRl04Fields,
  defaults: {
    model: 'Qwen/Qwen3-0.6B',
    learning_rate: 1e-6,
    seed: 42,
    rollouts_per_example: 2,
    seq_len: 2048,
    sampling: { max_tokens: 2048 },
    trainer: {
      weight_decay: 0.01,
      loss: { type: 'importance_sampling', mask_low: 0.125, mask_high: 8 },
    },
  },
  prepare: withoutNulls(() => primeRl04, primeRl04Tables),
  together,
  proof: (table) =>
    ['orchestrator.env', 'orchestrator.sampling', 'inference_gpu_ids', 'trainer_gpu_ids'].find(
      (path) => valueAt(table, path.split('.')) !== undefined,
    ),
  synonyms: {
    lr: 'lr',
    group_size: 'rollouts_per_example',
    learning_rate: 'lr',
    max_completion_tokens: 'max_tokens',
    ratio: 'env_ratios',
    source: 'env',
  },
  hints: {
    'trainer.model.ac': 'write a table of its own: [trainer.model.ac] with freq = 1, which is every layer',
    'orchestrator.advantage':
      'prime-rl would train on raw rewards; for that write a function of yours and name it in [ratchet.trainer.advantage] import',
  },
};

const shared = { otherwise: 'warn' } as const;
const lengthUsual = 2048;

function together(written: Table, own: Own): void {
  const maxSteps = setMaxSteps(written, own, shared);
  setModel(written, own);
  setLengths(written, own);
  setGpus(written, own);
  setServers(own);
  setCheckpoints(written, own, maxSteps, shared);
  setWandb(written, own, ['wandb', 'trainer.wandb', 'orchestrator.wandb'], shared);
  setScheduler(written, own, maxSteps);
  setLora(written, own);
  setAsyncLevel(written, own, shared);
  setSampling(written, own);
  setGroups(written, own);
  setEnvironments(written, own);
  setEvaluation(written, own);
  refuseOtherLosses(written, own);
  setScoringTeacher(written, own);
  refuseOtherOptimizers(written, own);
  refuseOthers(written, own);
}

function setModel(written: Table, own: Own): void {
  const name = found(written, 'model.name') ?? found(written, 'trainer.model.name');
  if (name) own.set(['model'], name.value, name.at);
  warnOfOtherModels(written, own, String(own.get(['model'])), [
    'trainer.model.name',
    'trainer.tokenizer.name',
    'orchestrator.model.name',
    'inference.model.name',
  ]);
}

/** Rows are cut at the orchestrator's length; the trainer's must be as long. */
function setLengths(written: Table, own: Own): void {
  const [all, trained, collected] = ['seq_len', 'trainer.model.seq_len', 'orchestrator.seq_len'].map((path) =>
    found(written, path),
  );
  const length = all ?? collected;
  if (all) agreed(written, own, ['seq_len', 'trainer.model.seq_len', 'orchestrator.seq_len'], shared);
  else if (trained && Number(trained.value) < Number(collected?.value ?? lengthUsual)) {
    const [from, least] = [collected?.at ?? trained.at, String(Number(collected?.value ?? lengthUsual))];
    const expected = `at least orchestrator.seq_len (${least}), or one seq_len at the top for both`;
    own.refuse({ paths: [trained.at, from], expected, received: String(trained.value) });
  } else if (trained && !collected) {
    own.warn(`${formatPath(trained.at)} has no effect: rows are cut at orchestrator.seq_len, which is ${lengthUsual}.`);
  } else if (collected && !trained && Number(collected.value) > lengthUsual) {
    own.warn(
      `trainer.model.seq_len is not written and would be ${lengthUsual}, less than ${formatPath(collected.at)} (${String(collected.value)}): that is taken for both. One seq_len at the top says it for both.`,
    );
  }
  if (length) own.set(['seq_len'], length.value, length.at);
  const served = agreed(written, own, ['max_model_len', 'inference.model.max_model_len'], shared);
  if (served) own.set(['inference', 'vllm', 'max_model_len'], served.value, served.at);
  warnOfLengths(own, length, served);
  if (found(written, 'orchestrator.sampling.max_tokens') === undefined) setLongestAnswers(own, { served, length });
}

function setGpus(written: Table, own: Own): void {
  const [train, infer] = ['trainer', 'inference'].map((role) => {
    const ids = found(written, `${role}_gpu_ids`);
    if (Array.isArray(ids?.value)) {
      own.set([role, 'gpus'], ids.value.length, ids.at);
      own.set([role, 'gpu_ids'], ids.value, ids.at);
    }
    return ids;
  });
  const both = idsOf(train).filter((id) => idsOf(infer).includes(id));
  if (train && infer && both.length > 0) {
    own.warn(
      `inference_gpu_ids and trainer_gpu_ids share GPU ${both.join(', ')}: the server and the trainer would not both fit.`,
    );
  }
  const perModel = found(written, 'inference.parallel.tp');
  if (infer && perModel && idsOf(infer).length % Number(perModel.value) !== 0) {
    own.refuse({
      paths: [perModel.at, infer.at],
      expected: `a divisor of the number of inference_gpu_ids (${idsOf(infer).length})`,
      received: String(perModel.value),
    });
  }
  const table = ['trainer', 'model'];
  const isOn = (key: string): boolean => isTable(valueAt(written, [...table, key]));
  if (isOn('ac') || isOn('ac_offloading')) {
    const freq = found(written, 'trainer.model.ac.freq');
    own.set(['trainer', 'ac_freq'], freq?.value ?? 1, freq?.at ?? [...table, isOn('ac') ? 'ac' : 'ac_offloading']);
  }
  for (const key of ['ac_offloading', 'compile']) if (isOn(key)) own.set(['trainer', key], true, [...table, key]);
}

function idsOf(ids: Found | undefined): readonly unknown[] {
  return Array.isArray(ids?.value) ? ids.value : [];
}

/** Fields of the request that prime-rl 0.4 sends itself, and writes over what `extra_body` says. */
const sentAnyway: Readonly<Record<string, string>> = {
  temperature: 'write orchestrator.sampling.temperature',
  max_tokens: 'write orchestrator.sampling.max_tokens',
  min_tokens: 'write orchestrator.sampling.min_tokens',
  repetition_penalty: 'write orchestrator.sampling.repetition_penalty',
  seed: 'write orchestrator.sampling.seed',
  top_p: 'write [ratchet.sampling] top_p',
  top_k: 'write [ratchet.sampling] top_k',
  min_p: 'write [ratchet.sampling] min_p',
  logprobs: 'leave it out: they are always asked for',
  return_token_ids: 'leave it out: they are always asked for',
};

function setSampling(written: Table, own: Own): void {
  const at = ['orchestrator', 'sampling'];
  const scheduler = valueAt(written, [...at, 'temp_scheduler']);
  const temperature = found(written, 'orchestrator.sampling.temperature');
  if (isTable(scheduler)) {
    if (temperature) {
      own.refuse({
        paths: [[...at, 'temp_scheduler'], temperature.at],
        expected: `nothing beside temperature (${String(temperature.value)}): the temperature is one number or has a course`,
        received: 'a table',
      });
    }
    for (const key of ['start_temperature', 'end_temperature']) {
      if (scheduler[key] !== undefined) continue;
      own.refuse({ paths: [[...at, 'temp_scheduler', key]], expected: 'a number ≥ 0', received: 'nothing' });
    }
    if (scheduler['total_steps'] === undefined && found(written, 'max_steps') === undefined) {
      own.refuse({
        paths: [[...at, 'temp_scheduler', 'total_steps']],
        expected: 'an integer ≥ 1, or max_steps at the top: the course ends somewhere',
        received: 'nothing',
      });
    }
    own.set(['sampling', 'temperature'], scheduler['start_temperature'] ?? 1, [...at, 'temp_scheduler']);
  }
  setExtraBody(written, own, at, ['sampling'], sentAnyway);
}

function setGroups(written: Table, own: Own): void {
  const size = found(written, 'orchestrator.rollouts_per_example');
  const isAlone = teachesAlone(written);
  if (size && (isAlone || Number(size.value) >= 2)) own.set(['rollouts_per_example'], size.value, size.at);
  else if (isAlone) own.set(['rollouts_per_example'], 1);
  else {
    own.refuse({
      paths: [size?.at ?? ['orchestrator', 'rollouts_per_example']],
      expected: 'an integer ≥ 2: a rollout is compared with the others of its group, and one alone teaches nothing',
      received: size ? String(size.value) : 'nothing, which is 1 in prime-rl',
    });
  }
  const most = found(written, 'orchestrator.max_concurrent');
  const least = Number(size?.value ?? 1) * Number(found(written, 'orchestrator.workers_per_env')?.value ?? 1);
  if (most && Number(most.value) < least) {
    const expected = `at least rollouts_per_example × workers_per_env (${least})`;
    own.refuse({ paths: [most.at], expected, received: String(most.value) });
  }
}

function setEnvironments(written: Table, own: Own): void {
  const environments = valueAt(written, ['orchestrator', 'env']);
  const count = Array.isArray(environments) ? environments.length : 0;
  if (count === 0) own.set(['env'], [{ id: 'reverse-text' }]);
  for (let i = 0; i < count; i++) {
    if (own.get(['env', i, 'id']) === undefined) own.set(['env', i, 'id'], 'reverse-text', ['orchestrator', 'env', i]);
  }
  const ratios = found(written, 'orchestrator.buffer.env_ratios');
  if (!Array.isArray(ratios?.value)) {
    if (count > 1) {
      own.warn(
        'orchestrator.buffer.env_ratios is not written: prime-rl draws in proportion to the sizes of the datasets, here every environment is drawn alike. Write the ratios to have others.',
      );
    }
    return;
  }
  const { value, at } = ratios;
  if (value.length !== Math.max(1, count)) {
    const expected = `${Math.max(1, count)} numbers, one for each [[orchestrator.env]]`;
    own.refuse({ paths: [at], expected, received: `${value.length}` });
    return;
  }
  for (const [i, ratio] of value.entries()) {
    if (Number(ratio) > 0) own.set(['env', i, 'weight'], ratio, [...at, i]);
    else own.refuse({ paths: [[...at, i]], expected: 'a number > 0', received: String(ratio) });
  }
}

function setEvaluation(written: Table, own: Own): void {
  const at = ['orchestrator', 'eval'];
  const evaluation = valueAt(written, at);
  if (!isTable(evaluation)) return;
  const environments = evaluation['env'];
  const count = Array.isArray(environments) ? environments.length : 0;
  if (count === 0) own.set(['eval', 'env'], [{ id: 'reverse-text' }], at);
  for (let i = 0; i < count; i++) {
    if (own.get(['eval', 'env', i, 'id']) === undefined) {
      own.set(['eval', 'env', i, 'id'], 'reverse-text', [...at, 'env', i]);
    }
  }
  setExtraBody(written, own, [...at, 'sampling'], ['eval', 'sampling'], {});
  const missing = ['temperature', 'max_tokens'].filter(
    (key) => found(written, `orchestrator.eval.sampling.${key}`) === undefined,
  );
  if (missing.length > 0) {
    own.warn(
      `orchestrator.eval.sampling: ${missing.join(' and ')} not written, which prime-rl leaves to its server; evaluations here are sampled as orchestrator.sampling says.`,
    );
  }
}

/** The token mask and the ratio are the engine's; sequences are not masked as a whole. */
function refuseOtherLosses(written: Table, own: Own): void {
  const at = (key: string): string => `trainer.loss.${key}`;
  const engine = 'the embedded engine computes −ρ·A over the tokens that the token mask keeps';
  const usual = {
    ratio_type: 'token',
    geo_mask_low: 0.1,
    geo_mask_high: 10,
    sequence_mask_low: 0,
    sequence_mask_high: 100,
    kl_tau: 0,
  };
  for (const [key, value] of Object.entries(usual)) refuseUnless(written, own, at(key), value, engine);
  refuseUnlessLess(written, own, [at('token_mask_low'), 0.125], [at('token_mask_high'), 8]);
  refuseUnlessLess(written, own, [at('geo_mask_low'), 0.1], [at('geo_mask_high'), 10]);
  refuseUnlessLess(written, own, [at('sequence_mask_low'), 0], [at('sequence_mask_high'), 100]);
  const { type } = (own.get(['trainer', 'loss']) ?? {}) as { type?: unknown };
  if (type === 'importance_sampling') {
    own.warn(
      'loss: −ρ·A over tokens whose ratio lies in the token mask, as in prime-rl 0.4, without its masks of whole sequences (a geometric mean outside 0.1…10, a ratio above 100).',
    );
  }
}

function refuseOthers(written: Table, own: Own): void {
  refuseUnless(written, own, 'bench', false, 'a bench trains on made-up data; see `npm run bench`');
  refuseUnless(written, own, 'orchestrator.bench', false, 'a bench trains on made-up data; see `npm run bench`');
  refuseUnless(
    written,
    own,
    'trainer.model.debug.random_init',
    false,
    'weights are those of the model; for others name a preset',
  );
  refuseUnless(written, own, 'orchestrator.mask_env_responses', true, 'what an environment says is never trained on');
  const centered = 'the advantage is the reward less the mean of its group';
  refuseUnless(written, own, 'orchestrator.advantage.length_weighted_mean', false, centered);
  refuseUnless(written, own, 'orchestrator.advantage.type', 'default', centered);
  refuseUnless(
    written,
    own,
    'trainer.loss.type',
    'default',
    'a loss of your own goes into [ratchet.trainer.loss] import',
  );
  const unscored = found(written, 'orchestrator.buffer.skip_verification');
  if (unscored?.value === true) {
    const rewarded = ['online_difficulty_filtering', 'easy_threshold', 'hard_threshold'].filter(
      (key) => found(written, `orchestrator.buffer.${key}`) !== undefined,
    );
    const besides = rewarded.length === 0 ? '' : `, and ${rewarded.join(', ')} beside it needs them`;
    const expected = `false: without rewards there is nothing to learn from${besides}`;
    own.refuse({ paths: [unscored.at], expected, received: 'true' });
  }
  for (const pool of ['easy', 'hard']) {
    const fraction = found(written, `orchestrator.buffer.${pool}_fraction`);
    if (fraction === undefined || fraction.value === 0) continue;
    own.warn(
      `${formatPath(fraction.at)} = ${String(fraction.value)} has no effect: it says how many ${pool} examples come back when prime-rl is started again, and a run here goes on with the pools it had.`,
    );
  }
  const [weights, moments] = ['fsdp_cpu_offload', 'optim_cpu_offload'].map((key) =>
    found(written, `trainer.model.${key}`),
  );
  if (weights?.value === true && moments?.value === true) {
    const expected = 'false: fsdp_cpu_offload beside it moves them already';
    own.refuse({ paths: [moments.at, weights.at], expected, received: 'true' });
  }
  if (hasTable(written, 'resume') && found(written, 'resume.step') === undefined)
    own.set(['resume', 'step'], -1, ['resume']);
}

import { isTable, type Table, valueAt } from '../../toml/tables.ts';
import { maskedImportanceSampling, setExtraBody, wholeBatches } from '../common-words.ts';
import { type Dialect, type Found, type Own, ownTable } from '../dialect.ts';
import { primeRl04Fields, primeRl04Tables } from './prime-rl-04-fields.ts';
import { ageOf, proofOf, sayAge } from './prime-rl-ages.ts';
import { sayDifferences } from './prime-rl-differs.ts';
import {
  advantageHint,
  refuseGroupOfOne,
  setAlike,
  setRatios,
  theirDefaults,
  defaultTrainer,
  type Version,
  warnOfOtherModels,
} from './prime-rl-meaning.ts';
import { setDeployment } from './prime-rl.ts';
import { setScoringTeacher, teachesAlone } from './prime-rl-teacher.ts';
import { setOptimizer } from './prime-rl-optimizer.ts';
import { primeRl04Renames } from './prime-rl-renames.ts';
import { found, take, withoutNulls } from './prime-rl-words.ts';

/**
 * prime-rl v0.4.0 (2026-02): one file for `rl`, by its documentation of that time. A value at the top wins over the
 * same one in a table below, silently there, with a warning here.
 */
export const primeRl04: Dialect = {
  name: 'prime-rl-0.4',
  title: 'prime-rl 0.4',
  fields: primeRl04Fields,
  renames: primeRl04Renames,
  otherwise: 'warn',
  defaults: { ...theirDefaults, ...wholeBatches, trainer: { ...defaultTrainer, loss: maskedImportanceSampling } },
  prepare: (table) => withoutNulls(table, primeRl04, primeRl04Tables),
  together,
  proof: proofOf('0.4'),
  mayBe: (table) => ageOf(table).age === '0.4',
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
    'orchestrator.advantage': advantageHint,
  },
};

const version: Version = {
  otherwise: 'warn',
  wandb: ['wandb', 'trainer.wandb', 'orchestrator.wandb'],
  served: ['max_model_len', 'inference.model.max_model_len'],
  sampling: 'orchestrator.sampling',
  answers: 'max_tokens',
};

function together(written: Table, own: Own): void {
  const said = sayAge(written, ageOf(own.asWritten));
  if (said !== undefined) own.warn(said);
  setAlike(written, own, version);
  setModel(written, own);
  setGpus(written, own);
  setDeployment(written, own);
  setExtraBody(own, written, { at: ['orchestrator', 'sampling'], ours: ['sampling'], sent: sentAnyway });
  setGroups(written, own);
  setEnvironments(written, own);
  setEvaluation(written, own);
  setMasks(written, own);
  setOptimizer(written, own, { muonIsFixed: true });
  setScoringTeacher(written, own);
  sayDifferences(written, own, { ...version, evaluated: 'orchestrator.eval.env[]' });
}

function setModel(written: Table, own: Own): void {
  const places = ['trainer.model.name', 'trainer.tokenizer.name', 'orchestrator.model.name', 'inference.model.name'];
  if (!take(written, own, 'model.name', ['model'])) take(written, own, 'trainer.model.name', ['model']);
  warnOfOtherModels(written, own, places);
}

/** A mere number of GPUs, as in `--trainer-gpus 1`. */
function setGpuCounts(written: Table, own: Own): void {
  for (const role of ['trainer', 'inference']) {
    const [count, ids] = [found(written, `${role}_gpus`), found(written, `${role}_gpu_ids`)];
    if (count === undefined) continue;
    own.set([role, 'gpus'], count.value, count.at);
    if (ids === undefined || idsOf(ids).length === count.value) continue;
    const expected = `${idsOf(ids).length}, as many as ${role}_gpu_ids lists, or only one of the two`;
    own.refuse({ paths: [count.at, ids.at], expected, received: String(count.value) });
  }
}

function setGpus(written: Table, own: Own): void {
  setGpuCounts(written, own);
  const [train, infer] = ['trainer', 'inference'].map((role) => found(written, `${role}_gpu_ids`));
  const both = idsOf(train).filter((id) => idsOf(infer).includes(id));
  if (both.length > 0) {
    own.warn(
      `inference_gpu_ids and trainer_gpu_ids share GPU ${both.join(', ')}: the server and the trainer would not both fit.`,
    );
  }
  const perModel = found(written, 'inference.parallel.tp');
  if (infer && perModel && idsOf(infer).length % Number(perModel.value) !== 0) {
    const expected = `a divisor of the number of inference_gpu_ids (${idsOf(infer).length})`;
    own.refuse({ paths: [perModel.at, infer.at], expected, received: String(perModel.value) });
  }
  const table = ['trainer', 'model'];
  const isOn = (key: string): boolean => isTable(valueAt(written, [...table, key]));
  if (isOn('ac') || isOn('ac_offloading')) {
    const freq = found(written, 'trainer.model.ac.freq');
    own.set(['trainer', 'ac_freq'], freq?.value ?? 1, freq?.at ?? [...table, isOn('ac') ? 'ac' : 'ac_offloading']);
  }
}

function idsOf(ids: Found | undefined): readonly unknown[] {
  return Array.isArray(ids?.value) ? ids.value : [];
}

/** Request fields that prime-rl 0.4 always sends, overriding `extra_body`. */
const sentAnyway: Readonly<Record<string, string>> = {
  temperature: 'write orchestrator.sampling.temperature',
  max_tokens: 'write orchestrator.sampling.max_tokens',
  min_tokens: 'write orchestrator.sampling.min_tokens',
  repetition_penalty: 'write orchestrator.sampling.repetition_penalty',
  seed: 'write orchestrator.sampling.seed',
  top_p: 'write orchestrator.sampling.top_p',
  top_k: 'write orchestrator.sampling.top_k',
  min_p: 'write orchestrator.sampling.min_p',
  logprobs: 'leave it out: they are always asked for',
  return_token_ids: 'leave it out: they are always asked for',
};

function setGroups(written: Table, own: Own): void {
  const path = 'orchestrator.rollouts_per_example';
  const size = found(written, path);
  const isAlone = teachesAlone(written);
  if (isAlone || Number(size?.value) >= 2) own.set(['rollouts_per_example'], size?.value ?? 1, size?.at);
  else refuseGroupOfOne(own, size, path);
  const most = found(written, 'orchestrator.max_concurrent');
  const least = Number(size?.value ?? 1) * Number(found(written, 'orchestrator.workers_per_env')?.value ?? 1);
  if (most && Number(most.value) < least) {
    const expected = `at least rollouts_per_example × workers_per_env (${least})`;
    own.refuse({ paths: [most.at], expected, received: String(most.value) });
  }
}

/** Names environments; prime-rl's default is reverse-text for an entry or list without names. Returns their number. */
function nameEnvironments(written: Table, own: Own, at: readonly string[], ours: readonly string[]): number {
  const entries = valueAt(written, at);
  const count = Array.isArray(entries) ? entries.length : 0;
  if (count === 0) own.set(ours, [{ id: 'reverse-text' }], at.slice(0, -1));
  for (let i = 0; i < count; i++) {
    if (own.get([...ours, i, 'id']) === undefined) own.set([...ours, i, 'id'], 'reverse-text', [...at, i]);
  }
  return count;
}

function setEnvironments(written: Table, own: Own): void {
  const count = nameEnvironments(written, own, ['orchestrator', 'env'], ['env']);
  const isSaid = setRatios(written, own, Math.max(1, count), 'orchestrator.env');
  if (isSaid || count < 2) return;
  own.warn(
    'orchestrator.buffer.env_ratios is not written: prime-rl draws in proportion to the sizes of the datasets, here every environment is drawn alike. Write the ratios to have others.',
  );
}

function setEvaluation(written: Table, own: Own): void {
  const at = ['orchestrator', 'eval'];
  if (!isTable(valueAt(written, at))) return;
  nameEnvironments(written, own, [...at, 'env'], ['eval', 'env']);
  setExtraBody(own, written, { at: [...at, 'sampling'], ours: ['eval', 'sampling'] });
}

/**
 * The token mask belongs to the loss. Masks of whole rows, by the geometric mean of their ratios and by the least and
 * the largest of them, belong to the correction: a step makes one pass over its batch, so the trained policy is the one
 * at the start of the step.
 */
function setMasks(written: Table, own: Own): void {
  const masks = { token: [0.125, 8], geo: [0.1, 10], sequence: [0, 100] } as const;
  const ofRows = { token: null, geo: 'geometric_mask', sequence: 'extreme_mask' } as const;
  // The masks are of its own loss: another one that the file names in our words has none of them.
  const named = valueAt(own.asWritten, [ownTable, 'trainer', 'loss', 'type']);
  const isOurs = (named ?? own.get(['trainer', 'loss', 'type'])) === 'importance_sampling';
  for (const [mask, [lowDefault, highDefault]] of Object.entries(masks)) {
    const [low, high] = [`trainer.loss.${mask}_mask_low`, `trainer.loss.${mask}_mask_high`];
    const [below, above] = [found(written, low), found(written, high)];
    const values = [Number(below?.value ?? lowDefault), Number(above?.value ?? highDefault)] as const;
    const key = ofRows[mask as keyof typeof masks];
    const from = below?.at ?? above?.at ?? ['trainer', 'loss'];
    if (key !== null && isOurs) own.set(['trainer', 'correction', key], [...values], from);
    if (values[0] < values[1]) continue;
    const first = below?.at ?? low.split('.');
    const expected = `less than ${high} (${values[1]})`;
    own.refuse({ paths: [first, above?.at ?? first], expected, received: String(values[0]) });
  }
  if (!isOurs) return;
  own.set(['trainer', 'correction', 'weight'], 'none', ['trainer', 'loss']);
  own.warn('the loss: its figure is a sum of −ρ·A; prime-rl logs −ρ·A·ln π, which has the same gradient.');
  own.warn(
    'failures: prime-rl 0.4 trains a rollout whose environment failed, with its reward of 0; here it is played again, and not trained where that does not help.',
  );
}

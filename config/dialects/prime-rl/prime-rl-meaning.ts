import { formatPath, type KeyPath } from '../../toml/positions.ts';
import { loraModules } from '../../settings/optimizer.ts';
import { isTable, type Table, tableOr, valueAt } from '../../toml/tables.ts';
import { checkTemperatureCourse } from '../common-words.ts';
import type { Dialect, Found, Own } from '../dialect.ts';
import { agreed, found, hasTable, take } from './prime-rl-words.ts';

/** Rules over several fields of prime-rl's files, common to all its versions. */

/** Defaults of all versions. */
export const theirDefaults: Table = {
  model: 'Qwen/Qwen3-0.6B',
  learning_rate: 1e-6,
  seed: 42,
  rollouts_per_example: 2,
  seq_len: 2048,
  sampling: { max_tokens: 2048 },
};
export const defaultTrainer: Table = { weight_decay: 0.01, dtype: 'bfloat16' };
/** Since 0.8 the trainer saves memory by default. */
export const defaultTrainerSince08: Table = { ...defaultTrainer, ac_freq: 1, optim_cpu_offload: true };

export const advantageHint =
  'prime-rl would train on raw rewards; for that write a function of yours and name it in [ratchet.trainer.advantage] import';

/** Places of common settings in one version. */
export interface Version extends Pick<Dialect, 'otherwise'> {
  /** The tables of the run, the trainer and the orchestrator; any one turns W&B on. */
  readonly wandb: readonly string[];
  /** Places of the server's length. */
  readonly served: readonly string[];
  /** Path of the sampling's table, and its limit on answers. */
  readonly sampling: string;
  readonly answers: string;
  /** Table of the trainer's settings; missing = "trainer", and in a trainer's own file its top, "". */
  readonly trainer?: '';
}

export function ofTrainer({ trainer }: Pick<Version, 'trainer'>, ...names: readonly string[]): string[] {
  return trainer === '' ? [...names] : ['trainer', ...names];
}

/** Sets what all versions have in common: steps, lengths, training and servers. */
export function setAlike(written: Table, own: Own, version: Version): void {
  const maxSteps = setMaxSteps(own);
  setLengths(written, own, version);
  setTraining(written, own, { ...version, maxSteps });
  refuseOtherLevels(written, own);
  checkTemperatureCourse(own, written, version.sampling.split('.'));
  warnOfFractions(written, own);
  // A file with server addresses uses those servers, not one that we would start.
  const isServed = own.get(['inference', 'url']) !== undefined;
  if (isServed && own.get(['inference', 'kind']) === undefined) own.set(['inference', 'kind'], 'openai');
}

/** Settings of the trainer alone, in a run's file or one of supervised training. */
export function setTraining(
  written: Table,
  own: Own,
  version: Pick<Version, 'trainer' | 'wandb'> & { readonly maxSteps: number },
): void {
  setGpus(written, own);
  setCheckpoints(written, own, version.maxSteps);
  setWandb(written, own, version);
  setScheduler(written, own, version);
  setLora(written, own, version);
  refuseTwoOffloads(written, own, version);
  if (hasTable(written, 'resume') && !found(written, 'resume.step')) own.set(['resume', 'step'], -1, ['resume']);
}

/** Steps of a run that would be endless in prime-rl. */
const stepsWithoutEnd = 100;

export function setMaxSteps(own: Own): number {
  const steps = own.get(['max_steps']);
  if (typeof steps === 'number') return steps;
  own.set(['max_steps'], stepsWithoutEnd);
  own.warn(
    `max_steps is not written: prime-rl would train without an end, this run makes ${stepsWithoutEnd} steps and can then be taken further.`,
  );
  return stepsWithoutEnd;
}

const lengthDefault = 2048;

/** Rows are cut at the orchestrator's length; the trainer's must be equal. */
function setLengths(written: Table, own: Own, version: Version): void {
  const places = ['seq_len', 'trainer.model.seq_len', 'orchestrator.seq_len'];
  const [all, trained, collected] = places.map((path) => found(written, path));
  if (all) agreed(written, own, places, version);
  else compareLengths(own, { trained, collected }, version);
  const length = all ?? collected;
  if (length) own.set(['seq_len'], length.value, length.at);
  const served = agreed(written, own, version.served, version);
  if (served) own.set(['inference', 'vllm', 'max_model_len'], served.value, served.at);
  if (length && served && length.value !== served.value) {
    const isShort = Number(length.value) < Number(served.value);
    own.warn(
      `${formatPath(length.at)} (${String(length.value)}) and ${formatPath(served.at)} (${String(served.value)}) differ: ${
        isShort
          ? 'rollouts may get longer than what is trained on'
          : 'no rollout gets as long as what can be trained on'
      }.`,
    );
  }
  // Without a limit on answers, prime-rl sends none, and the server uses the rest of its context: with `max_tokens` as
  // long as the context it would refuse every prompt. Without the server's length, the limit is that of rows.
  if (found(written, `${version.sampling}.${version.answers}`)) return;
  const limit = served ?? length;
  if (limit) own.set(['sampling', 'max_tokens'], limit.value, limit.at);
  if (served) own.set(['sampling', 'context_tokens'], served.value, served.at);
}

function compareLengths(
  own: Own,
  { trained, collected }: { readonly trained: Found | undefined; readonly collected: Found | undefined },
  { otherwise }: Version,
): void {
  const [longest, cut] = [Number(trained?.value ?? lengthDefault), Number(collected?.value ?? lengthDefault)];
  if (longest < cut && !trained && otherwise === 'warn') {
    own.warn(
      `trainer.model.seq_len is not written and would be ${lengthDefault}, less than ${formatPath(collected!.at)} (${cut}): that is taken for both. One seq_len at the top says it for both.`,
    );
  } else if (longest < cut) {
    own.refuse({
      paths: [trained?.at ?? collected!.at, collected?.at ?? trained!.at],
      expected: `at least orchestrator.seq_len (${cut}), or one seq_len at the top for both`,
      received: trained ? String(longest) : `nothing, which is trainer.model.seq_len = ${longest}`,
    });
  } else if (trained && !collected) {
    own.warn(
      `${formatPath(trained.at)} has no effect: rows are cut at orchestrator.seq_len, which is ${lengthDefault}.`,
    );
  }
}

/** A written limit is sent unchanged. */
export function setAnswerLimit(own: Own, ours: KeyPath, tokens: unknown, from: KeyPath): void {
  own.set([...ours, 'max_tokens'], tokens, from);
  if (own.get([...ours, 'context_tokens']) !== undefined) own.set([...ours, 'context_tokens'], undefined);
}

function setGpus(written: Table, own: Own): void {
  for (const role of ['trainer', 'inference']) {
    const ids = take(written, own, `${role}_gpu_ids`, [role, 'gpu_ids']);
    if (Array.isArray(ids?.value)) own.set([role, 'gpus'], ids.value.length, ids.at);
  }
}

function refuseTwoOffloads(written: Table, own: Own, version: Pick<Version, 'trainer'>): void {
  const keys = ['fsdp_cpu_offload', 'optim_cpu_offload'];
  if (keys.some((key) => own.get(['trainer', key]) !== true)) return;
  const isSaid = found(written, ofTrainer(version, 'model', 'optim_cpu_offload').join('.')) !== undefined;
  own.refuse({
    paths: keys.map((key) => ofTrainer(version, 'model', key)),
    expected: 'false: fsdp_cpu_offload beside it moves the moments already',
    received: isSaid ? 'true' : 'nothing, which is true',
  });
}

function warnOfFractions(written: Table, own: Own): void {
  for (const pool of ['easy', 'hard']) {
    const fraction = found(written, `orchestrator.buffer.${pool}_fraction`);
    if (fraction === undefined || fraction.value === 0) continue;
    own.warn(
      `${formatPath(fraction.at)} = ${String(fraction.value)} has no effect: it says how many ${pool} examples come back when prime-rl is started again, and a run here continues with the pools it had.`,
    );
  }
}

/** A table turns checkpoints on: without an interval only one, at the end; without a limit all of them are kept. */
function setCheckpoints(written: Table, own: Own, maxSteps: number): void {
  if (!['ckpt', 'trainer.ckpt', 'orchestrator.ckpt'].some((table) => hasTable(written, table))) return;
  const { interval, keep_last, keep_interval } = tableOr(own.get(['checkpoints']));
  if (interval === undefined && maxSteps >= 1) own.set(['checkpoints', 'interval'], maxSteps);
  if (keep_last === undefined) own.set(['checkpoints', 'keep_last'], keep_interval === undefined ? -1 : 1);
}

function setWandb(written: Table, own: Own, { wandb }: Pick<Version, 'wandb'>): void {
  const isOn = wandb.some((table) => hasTable(written, table));
  if (isOn && own.get(['wandb', 'project']) === undefined) own.set(['wandb', 'project'], 'prime-rl');
}

/** prime-rl's LinearLR accepts no factor of 0. */
const leastFactor = 1e-8;

/** constant, linear (up, level, down) and cosine. The warm-up begins at the final rate. */
function setScheduler(written: Table, own: Own, version: Parameters<typeof setTraining>[2]): void {
  const { maxSteps } = version;
  const at = ofTrainer(version, 'scheduler');
  const scheduler = valueAt(written, at);
  if (!isTable(scheduler)) return;
  const type = scheduler['type'] ?? 'constant';
  const from = (key: string): KeyPath => [...at, key];
  own.set(['trainer', 'schedule'], type, from('type'));
  for (const key of ['warmup_steps', 'decay_steps', 'min_lr']) {
    if (scheduler[key] === undefined || (type !== 'constant' && (key !== 'decay_steps' || type === 'linear'))) continue;
    own.refuse({
      paths: [from(key), from('type')],
      expected: `nothing: a ${JSON.stringify(type)} schedule has no ${key}`,
      received: JSON.stringify(scheduler[key]),
      ...(type === 'constant' ? { suggestion: 'write type = "linear" beside it, with decay_steps = 0' } : {}),
    });
  }
  if (type === 'constant') return;
  const warmup = Number(scheduler['warmup_steps'] ?? 10);
  own.set(['trainer', 'warmup_steps'], warmup, from('warmup_steps'));
  const peak = Number(valueAt(own.table, ['learning_rate']));
  const least = Number(scheduler['min_lr'] ?? 0);
  const ratio = least > 0 && peak > 0 ? Math.min(1, least / peak) : leastFactor;
  if (warmup > 0) own.set(['trainer', 'warmup_from'], ratio, from('min_lr'));
  own.set(['trainer', 'min_lr_ratio'], type === 'cosine' && least === 0 ? 0 : ratio, from('min_lr'));
  if (least > peak) {
    const rate = ofTrainer(version, 'optim', 'lr');
    const expected = `at most ${formatPath(rate)} (${peak}): the rate falls to it`;
    own.refuse({ paths: [from('min_lr'), rate], expected, received: String(least) });
  }
  if (type === 'cosine') {
    if (maxSteps > warmup) return;
    const expected = `less than max_steps (${maxSteps}): the cosine begins after it`;
    own.refuse({ paths: [from('warmup_steps'), ['max_steps']], expected, received: String(warmup) });
    return;
  }
  const decay = Number(scheduler['decay_steps'] ?? 10);
  if (decay > 0) {
    own.set(['trainer', 'decay_steps'], decay, from('decay_steps'));
    own.set(['trainer', 'min_lr_at_end'], true, from('decay_steps'));
  } else own.set(['trainer', 'schedule'], 'constant', from('type'));
  if (warmup === 0 && decay === 0) {
    const expected = 'warmup_steps or decay_steps above 0: the schedule is linear nowhere';
    own.refuse({ paths: [from('decay_steps'), from('type')], expected, received: '0 and 0' });
  }
}

/** Adapters: the table turns them on; only linear layers of a decoder can have one here. */
function setLora(written: Table, own: Own, version: Pick<Version, 'trainer'>): void {
  const at = ofTrainer(version, 'model', 'lora');
  const lora = valueAt(written, at);
  if (!isTable(lora)) return;
  own.set(['lora', 'enabled'], true, at);
  const modules = lora['target_modules'];
  if (Array.isArray(modules)) {
    const adapted = modules.filter((name) => (loraModules as readonly unknown[]).includes(name));
    const others = modules.filter((name) => !adapted.includes(name));
    own.set(['lora', 'target_modules'], adapted, [...at, 'target_modules']);
    if (others.length > 0) {
      own.warn(
        `${formatPath([...at, 'target_modules'])}: ${others.join(', ')} ${others.length === 1 ? 'is' : 'are'} left out: models here have ${loraModules.join(', ')}.`,
      );
    }
  }
  const saved = lora['modules_to_save'];
  if (Array.isArray(saved)) own.set(['lora', 'modules_to_save'], saved, [...at, 'modules_to_save']);
  const type = found(written, 'weight_broadcast.type') ?? found(written, 'trainer.weight_broadcast.type');
  if (type && type.value !== 'filesystem') {
    own.refuse({
      paths: [type.at, at],
      expected: '"filesystem": prime-rl cannot send adapters from memory to memory',
      received: JSON.stringify(type.value),
    });
  }
  for (const key of ['rank', 'alpha']) {
    const served = found(written, `orchestrator.model.lora.${key}`);
    const trained = lora[key] ?? { rank: 16, alpha: 32 }[key];
    if (served === undefined || served.value === trained) continue;
    own.refuse({
      paths: [served.at, [...at, key]],
      expected: `${JSON.stringify(trained)}, as ${formatPath([...at, key])} says: what is served is what is trained`,
      received: JSON.stringify(served.value),
    });
  }
}

/** Warns of names of models and tokenizers that differ from the trained model. */
export function warnOfOtherModels(written: Table, own: Own, paths: readonly string[]): void {
  const trained = own.get(['model']);
  for (const path of paths) {
    const other = found(written, path);
    if (other === undefined || other.value === trained) continue;
    own.warn(`${path} is ${JSON.stringify(other.value)}, and the model that is trained is ${JSON.stringify(trained)}.`);
  }
}

/** Weights transferred from memory to memory are those of one step. */
function refuseOtherLevels(written: Table, own: Own): void {
  const level = own.get(['max_async_level']);
  const type = found(written, 'weight_broadcast.type') ?? found(written, 'trainer.weight_broadcast.type');
  if (type?.value !== 'nccl' || level === undefined || level === 1) return;
  const expected = '1: with weight_broadcast.type = "nccl" prime-rl takes nothing else';
  own.refuse({ paths: [own.writtenAt(['max_async_level'])!, type.at], expected, received: JSON.stringify(level) });
}

/** A rollout needs others of its group for comparison. */
export function refuseGroupOfOne(own: Own, size: Found | undefined, path: string): void {
  own.refuse({
    paths: [size?.at ?? path.split('.')],
    expected: 'an integer ≥ 2: a rollout is compared with the others of its group, and one alone teaches nothing',
    received: size ? String(size.value) : 'nothing, which is 1 in prime-rl',
  });
}

/** `orchestrator.buffer.env_ratios`, a list in order of environments. Returns whether it exists. */
export function setRatios(written: Table, own: Own, count: number, list: string): boolean {
  const ratios = found(written, 'orchestrator.buffer.env_ratios');
  if (!Array.isArray(ratios?.value)) return false;
  const { value, at } = ratios;
  if (value.length !== count) {
    const expected = `${count} numbers, one for each [[${list}]]`;
    own.refuse({ paths: [at], expected, received: String(value.length) });
    return true;
  }
  for (const [i, ratio] of value.entries()) {
    if (Number(ratio) > 0) own.set(['env', i, 'weight'], ratio, [...at, i]);
    else own.refuse({ paths: [[...at, i]], expected: 'a number > 0', received: String(ratio) });
  }
  return true;
}

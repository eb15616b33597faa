import { formatPath, type KeyPath } from '../positions.ts';
import { isTable, type Table, valueAt } from '../tables.ts';
import type { Own } from './dialect.ts';
import { agreed, type Found, found, hasTable } from './prime-rl-words.ts';
import { loraModules } from '../settings/optimizer.ts';

/** What several fields of prime-rl's files mean together, alike in all its versions. */

type Otherwise = { readonly otherwise: 'refuse' | 'warn' };

/** Steps that a run makes where prime-rl would go on without an end. */
const stepsWithoutEnd = 100;

export function setMaxSteps(written: Table, own: Own, how: Otherwise): number {
  const steps = agreed(written, own, ['max_steps', 'trainer.max_steps', 'orchestrator.max_steps'], how);
  if (steps) own.set(['max_steps'], steps.value, steps.at);
  else {
    own.set(['max_steps'], stepsWithoutEnd);
    own.warn(
      `max_steps is not written: prime-rl would train without an end, this run makes ${stepsWithoutEnd} steps and can then be taken further.`,
    );
  }
  return typeof steps?.value === 'number' ? steps.value : stepsWithoutEnd;
}

/** A table that is there makes checkpoints: without an interval one, of the end; without a limit all of them are kept. */
export function setCheckpoints(written: Table, own: Own, maxSteps: number, how: Otherwise): void {
  const tables = ['ckpt', 'trainer.ckpt', 'orchestrator.ckpt'];
  const setting = (key: string): Found | undefined =>
    agreed(
      written,
      own,
      tables.map((table) => `${table}.${key}`),
      how,
    );
  if (!tables.some((table) => hasTable(written, table))) return;
  const interval = setting('interval');
  const [last, every] = [setting('keep_last'), setting('keep_interval')];
  const resume = setting('resume_step');
  if (resume) own.set(['ckpt', 'resume_step'], resume.value, resume.at);
  if (interval) own.set(['checkpoints', 'interval'], interval.value, interval.at);
  else if (maxSteps >= 1) own.set(['checkpoints', 'interval'], maxSteps);
  if (every) own.set(['checkpoints', 'keep_interval'], every.value, every.at);
  if (last) own.set(['checkpoints', 'keep_last'], last.value, last.at);
  else own.set(['checkpoints', 'keep_last'], every ? 1 : -1);
}

/** `tables`: where the run's, the trainer's and the orchestrator's settings are. One of them turns it on. */
export function setWandb(written: Table, own: Own, tables: readonly string[], how: Otherwise): void {
  if (!tables.some((table) => hasTable(written, table))) return;
  own.set(['wandb', 'project'], 'prime-rl');
  for (const key of ['project', 'name', 'entity', 'group', 'tags']) {
    const places = tables.map((table) => `${table}.${key}`);
    const setting = agreed(written, own, places, how);
    if (setting) own.set(['wandb', key], setting.value, setting.at);
  }
  const places = tables.map((table) => `${table}.offline`);
  const offline = agreed(written, own, places, how);
  if (offline) own.set(['wandb', 'mode'], offline.value === true ? 'offline' : 'online', offline.at);
}

/** constant, linear (up, level, down) and cosine. */
export function setScheduler(written: Table, own: Own, maxSteps: number): void {
  const at = ['trainer', 'scheduler'];
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
  if (peak > 0) own.set(['trainer', 'min_lr_ratio'], Math.min(1, least / peak), from('min_lr'));
  if (least > peak) {
    const expected = `at most trainer.optim.lr (${peak}): the rate falls to it`;
    own.refuse({ paths: [from('min_lr'), ['trainer', 'optim', 'lr']], expected, received: String(least) });
  }
  if (type === 'cosine') {
    if (maxSteps > warmup) return;
    const expected = `less than max_steps (${maxSteps}): the cosine begins after it`;
    own.refuse({ paths: [from('warmup_steps'), ['max_steps']], expected, received: String(warmup) });
    return;
  }
  const decay = Number(scheduler['decay_steps'] ?? 10);
  if (decay > 0) own.set(['trainer', 'decay_steps'], decay, from('decay_steps'));
  else own.set(['trainer', 'schedule'], 'constant', from('type'));
  if (warmup === 0 && decay === 0) {
    const expected = 'warmup_steps or decay_steps above 0: the schedule is linear nowhere';
    own.refuse({ paths: [from('decay_steps'), from('type')], expected, received: '0 and 0' });
  }
}

/** AdamW is what the embedded engine has. */
export function refuseOtherOptimizers(written: Table, own: Own): void {
  const type = found(written, 'trainer.optim.type');
  if (type === undefined || type.value === 'adamw') return;
  own.refuse({
    paths: [type.at],
    expected: '"adamw": the embedded engine has no other optimizer',
    received: JSON.stringify(type.value),
  });
}

/** Adapters: the table turns them on; what is no linear layer of a decoder has none here. */
export function setLora(written: Table, own: Own): void {
  const at = ['trainer', 'model', 'lora'];
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
        `trainer.model.lora.target_modules: ${others.join(', ')} ${others.length === 1 ? 'is' : 'are'} left out: models here have ${loraModules.join(', ')}.`,
      );
    }
  }
  const saved = lora['modules_to_save'];
  if (Array.isArray(saved) && saved.length > 0) {
    own.refuse({
      paths: [[...at, 'modules_to_save']],
      expected: 'an empty list: beside its adapters a run here trains nothing',
      received: JSON.stringify(saved),
    });
  }
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

/** Names of the model and of its tokenizer that are not the one of the model that is trained. */
export function warnOfOtherModels(written: Table, own: Own, trained: string, paths: readonly string[]): void {
  for (const path of paths) {
    const other = found(written, path);
    if (other === undefined || other.value === trained) continue;
    own.warn(`${path} is ${JSON.stringify(other.value)}, and the model that is trained is ${JSON.stringify(trained)}.`);
  }
}

/** `seq_len` and vLLM's `max_model_len`: prime-rl's documents say both that it must be at least, and at most, the other. */
export function warnOfLengths(own: Own, length: Found | undefined, served: Found | undefined): void {
  if (typeof length?.value !== 'number' || typeof served?.value !== 'number' || length.value === served.value) return;
  const isShort = length.value < served.value;
  own.warn(
    `${formatPath(length.at)} (${length.value}) and ${formatPath(served.at)} (${served.value}) differ: ${
      isShort ? 'rollouts may get longer than what is trained on' : 'no rollout gets as long as what can be trained on'
    }.`,
  );
}

/** Numbers that prime-rl compares: the first must be less than the second. */
export function refuseUnlessLess(
  written: Table,
  own: Own,
  [low, lowUsual]: readonly [string, number],
  [high, highUsual]: readonly [string, number],
): void {
  const [below, above] = [found(written, low), found(written, high)];
  const values = [Number(below?.value ?? lowUsual), Number(above?.value ?? highUsual)] as const;
  if (values[0] < values[1]) return;
  const first = below?.at ?? low.split('.');
  const expected = `less than ${high} (${values[1]})`;
  own.refuse({ paths: [first, above?.at ?? first], expected, received: String(values[0]) });
}

/** A field whose usual value says what happens here, and no other can be had. */
export function refuseUnless(written: Table, own: Own, path: string, usual: unknown, because: string): void {
  const field = found(written, path);
  if (field === undefined || JSON.stringify(field.value) === JSON.stringify(usual)) return;
  own.refuse({
    paths: [field.at],
    expected: `${JSON.stringify(usual)}: ${because}`,
    received: JSON.stringify(field.value),
  });
}

/** The embedded engine samples one step ahead at most. */
export function setAsyncLevel(written: Table, own: Own, how: Otherwise): void {
  const level = agreed(
    written,
    own,
    ['max_async_level', 'trainer.max_async_level', 'orchestrator.max_async_level'],
    how,
  );
  if (level) {
    own.set(['max_async_level'], Math.min(1, Number(level.value)), level.at);
    if (Number(level.value) > 1) {
      own.warn(
        `${formatPath(level.at)} = ${String(level.value)} is read as 1: rollouts are sampled one step ahead at most, and are less stale for it.`,
      );
    }
  }
  const type = found(written, 'weight_broadcast.type') ?? found(written, 'trainer.weight_broadcast.type');
  if (type?.value === 'nccl' && level !== undefined && level.value !== 1) {
    const expected = '1: with weight_broadcast.type = "nccl" prime-rl takes nothing else';
    own.refuse({ paths: [level.at, type.at], expected, received: String(level.value) });
  }
}

/**
 * Where no limit of answers is written, prime-rl sends none, and the server gives what a prompt leaves of its context: with
 * `max_tokens` as long as the context it would refuse every prompt. Without the server's length, rows are cut at theirs.
 */
export function setLongestAnswers(
  own: Own,
  { served, length }: { readonly served: Found | undefined; readonly length: Found | undefined },
): void {
  const limit = served ?? length;
  if (limit) own.set(['sampling', 'max_tokens'], limit.value, limit.at);
  if (served) own.set(['sampling', 'context_tokens'], served.value, served.at);
}

/** One that is written is sent as it is. */
export function setAnswerLimit(own: Own, ours: KeyPath, tokens: unknown, from: KeyPath): void {
  own.set([...ours, 'max_tokens'], tokens, from);
  if (own.get([...ours, 'context_tokens']) !== undefined) own.set([...ours, 'context_tokens'], undefined);
}

/** Free request fields: ours where we have them, kept for a server that takes them where not, refused where they say it twice. */
export function setExtraBody(
  written: Table,
  own: Own,
  at: KeyPath,
  ours: KeyPath,
  twice: Readonly<Record<string, string>>,
): void {
  const body = valueAt(written, [...at, 'extra_body']);
  if (!isTable(body)) return;
  const kept: Table = {};
  for (const [key, value] of Object.entries(body)) {
    const from = [...at, 'extra_body', key];
    const isSaid = valueAt(written, [...at, key]) !== undefined;
    if (isSaid || Object.hasOwn(twice, key)) {
      own.refuse({
        paths: [from],
        expected: `nothing: the request has ${key} already, and one that says it twice fails`,
        received: JSON.stringify(value),
        suggestion: isSaid ? `keep ${formatPath([...at, key])}` : twice[key]!,
      });
    } else if (ownRequestFields.includes(key)) own.set([...ours, key], value, from);
    else kept[key] = value;
  }
  if (Object.keys(kept).length > 0) own.set([...ours, 'extra_body'], kept, [...at, 'extra_body']);
}

const ownRequestFields: readonly string[] = [
  'chat_template_kwargs',
  'frequency_penalty',
  'min_p',
  'min_tokens',
  'presence_penalty',
  'repetition_penalty',
  'stop',
  'top_k',
  'top_p',
];

import { z } from 'zod';
import { asRunName } from '../../core/names.ts';
import { formatPath, type KeyPath } from '../toml/positions.ts';
import { describe } from '../toml/reporter.ts';
import { requestFields } from '../settings/sampling.ts';
import { isTable, type Table, valueAt } from '../toml/tables.ts';
import { flag } from '../toml/values.ts';
import type { Own } from './dialect.ts';

/** Rules that several dialects share, in our own words. */

/** Why validation of other systems has no effect. */
export const noValidation = 'no validation batches are made; [eval] plays held-out examples';

/** The loss of prime-rl 0.4 and of verifiers' RLTrainer: −ρ·A over the tokens whose ratio the mask keeps. */
export const maskedImportanceSampling: Table = { type: 'importance_sampling', mask_low: 0.125, mask_high: 8 };

/** Groups with equal rewards are trained on like others: without an advantage they only add to a loss's denominator. */
export const wholeBatches: Table = { difficulty_filter: { keep_equal: true } };

/**
 * Batches of prime-rl since v0.6: groups with equal rewards fill them like others. Rollouts without an advantage are
 * removed from a full batch, and not replaced (`filter_zero_advantages`; until v0.8.0 a filter of full batches).
 */
export const prunedBatches: Table = {
  ...wholeBatches,
  post_batch_filters: [{ type: 'zero_advantage' }],
};

/** Files with variables of the environments, under Hosted Training's two names. */
export function setEnvFiles(written: Table, own: Own): void {
  const [file, files] = [written['env_file'], written['env_files']];
  const all = [file, files].flat().filter((one) => typeof one === 'string');
  if (all.length > 0) own.set(['env_files'], all, [files === undefined ? 'env_file' : 'env_files']);
}

/** One file, or several. */
export function filesOfVariables(): z.ZodType {
  return z.union([z.string(), z.array(z.string())]).meta({ expected: 'a text or a list of texts' });
}

/**
 * Batches of prime-rl since September 2026 (`constant_trainer_batch_size`): groups without an advantage are replaced.
 */
export const replacedGroups: Table = { pre_batch_filters: [{ type: 'zero_advantage' }] };

/** Warns if groups differ in their size. */
export function sayWholeGroups(own: Own, at: KeyPath): void {
  own.warn(
    `${formatPath(at)}: groups differ in their size, so a batch is whole groups here, up to the first with which it has batch_size rollouts; prime-rl cuts it between the rollouts of a group.`,
  );
}

/** A run's name is a folder's and a workflow's as well, so it may have to change. */
export function setRunName(own: Own, written: unknown, from: KeyPath): void {
  if (typeof written !== 'string') return;
  const name = asRunName(written);
  if (name === undefined) {
    const expected = 'a name with a letter or digit in it: the run and its folder are called after it';
    own.refuse({ paths: [from], expected, received: JSON.stringify(written) });
    return;
  }
  own.set(['name'], name, from);
  if (name !== written) {
    own.warn(
      `the run is called ${name} here, not ${JSON.stringify(written)}: it names a folder and a workflow as well`,
    );
  }
}

interface ExtraBody {
  /** Path of the sampling's table. */
  readonly at: KeyPath;
  /** Its path in our words; missing = the same. */
  readonly ours?: KeyPath;
  /** Fields that are always sent, with advice. */
  readonly sent?: Readonly<Record<string, string>>;
}

/**
 * `[sampling] extra_body` in our words: known parameters become ours, the rest is refused. A
 * field that is also sent otherwise is refused, as vLLM would in the middle of a run.
 */
export function setExtraBody(own: Own, written: Table, { at, ours = at, sent = {} }: ExtraBody): void {
  const body = valueAt(written, [...at, 'extra_body']);
  if (!isTable(body)) return;
  const rest: Table = {};
  for (const [key, value] of Object.entries(body)) {
    const from = [...at, 'extra_body', key];
    const beside = valueAt(written, [...at, key]);
    if (beside !== undefined) {
      own.refuse({
        paths: [from, [...at, key]],
        expected: `${key} in one of the two places: a request that says it twice fails`,
        received: `${JSON.stringify(value)} here, ${JSON.stringify(beside)} beside it`,
        suggestion: `keep the one in [${at.join('.')}]`,
      });
    } else if (Object.hasOwn(sent, key)) {
      const expected = `nothing: the request has ${key} already, and one that says it twice fails`;
      own.refuse({ paths: [from], expected, received: JSON.stringify(value), suggestion: sent[key]! });
    } else if (requestFields.includes(key) && (key !== 'seed' || ours.length === 1))
      own.set([...ours, key], value, from);
    else rest[key] = value;
  }
  if (Object.keys(rest).length === 0) return;
  own.refuse({
    paths: [[...at, 'extra_body']],
    expected: 'only those that [sampling] has by name',
    received: describe(rest),
    suggestion: 'known, not supported yet: further fields of a request',
  });
}

/** A temperature is one number, or a schedule with a beginning and an end. */
export function checkTemperatureCourse(own: Own, written: Table, at: KeyPath): void {
  const course = [...at, 'temp_scheduler'];
  const temperature = valueAt(written, [...at, 'temperature']);
  if (valueAt(written, course) === undefined) return;
  for (const key of ['start_temperature', 'end_temperature']) {
    if (valueAt(written, [...course, key]) !== undefined) continue;
    own.refuse({ paths: [[...course, key], course], expected: 'a number > 0', received: 'nothing' });
    own.set(['sampling', 'temp_scheduler', key], 1); // reported once
  }
  if (temperature === undefined) return;
  own.refuse({
    paths: [[...at, 'temperature'], course],
    expected: `nothing beside [${course.join('.')}]: the temperature is one number or has a course`,
    received: describe(temperature),
  });
}

/** The id of a Hub environment, with the version that is written beside it. */
export function withVersion(id: string, version: unknown): string {
  if (typeof version !== 'string') return id;
  return `${id.replace(/@[^@]*$/, '')}@${version}`;
}

/** Filters of rollouts; each type has options of its own. */
export function filters(type: z.ZodType, expected = 'a list of tables with a type'): z.ZodType {
  return z.array(z.looseObject({ type, enforce: flag().optional() })).meta({ expected });
}

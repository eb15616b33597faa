import { existsSync } from 'node:fs';
import path from 'node:path';
import type { EvaluatedEnvironment, EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { JudgeUse, RescoreInput } from '../../core/eval/rescore.ts';
import { RatchetError } from '../../core/errors.ts';
import { runNamePattern } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import { layout } from '../../runs/layout.ts';
import { newestAttempt } from '../../runs/evaluations/evaluation-store.ts';
import { storedSpec } from '../../runs/forms/stored-spec.ts';
import { rescoreId, rescoreKeys } from '../../runs/rescores/rescore-store.ts';
import { type RunPlace, storeOf } from '../../runs/run-access.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { findRunFolder } from '../stored/run-place.ts';
import { headStep } from '../../runs/run-records.ts';
import { readCount } from '../typed/read-count.ts';
import { asItIsNow, entryOf, rubricAt } from './rescore-environments.ts';

export interface RescoreOptions {
  readonly rubric?: string;
  readonly args?: string;
  readonly steps?: string;
  readonly failedJudges?: boolean;
  readonly maxJudgeCalls?: string;
  readonly maxJudgeTokens?: string;
  readonly fresh?: boolean;
  readonly store?: string;
  readonly grant?: readonly string[];
  readonly json?: boolean;
}

/** A rescore as it was typed. */
export interface TypedRescore {
  readonly input: RescoreInput;
  /** Where messages say the stored environments are from. */
  readonly place: RunPlace;
  /** Whether a run is rescored. */
  readonly isRun: boolean;
  /** Whether a fork may train its rollouts (`--rewards`). */
  readonly mayFork: boolean;
}

/** Reads what was typed: the folder of an evaluation, else the name of a run. Nothing is started. */
export async function readRescore(what: string, options: RescoreOptions): Promise<TypedRescore> {
  const found = (await evaluationAt(what, options)) ?? (await runAt(what, options));
  const { subject, place, environments, base, mayFork } = found;
  const rubric = options.rubric === undefined ? null : await rubricAt(options.rubric, options.args);
  if (rubric === null && options.args !== undefined)
    throw new RatchetError('ConfigInvalid', '--args: the arguments of the rubric that --rubric names, which is missing.'); // prettier-ignore
  const limit = limitOf(options);
  if (limit !== undefined) requireCounted(rubric === null ? environments : [rubric]);
  const asked = { subject, environments, rubric, failedOnly: options.failedJudges === true };
  const id = rescoreId(asked, options.fresh === true ? await nextFresh(base, asked) : 0);
  const results = { ...base, prefix: rescoreKeys.place(base.prefix, id) };
  return { input: { ...asked, results, ...present({ limit }) }, place, isRun: subject.kind === 'run', mayFork };
}

interface Found {
  readonly subject: RescoreInput['subject'];
  readonly place: RunPlace;
  readonly environments: readonly EvaluatedEnvironment[];
  /** Folder of the run or evaluation. */
  readonly base: EvaluationPlace;
  readonly mayFork: boolean;
}

/** Null: there is no evaluation of Ratchet's in a folder of this name. */
async function evaluationAt(what: string, { steps, store }: RescoreOptions): Promise<Found | null> {
  const folder = path.resolve(what);
  const name = path.basename(folder);
  if (!runNamePattern.test(name)) return null;
  const base = { store: resolveStoreUri(path.dirname(folder), folder), name, prefix: '' };
  const found = await newestAttempt(base);
  if (found === null) return null;
  if (steps !== undefined)
    throw new RatchetError('ConfigInvalid', `--steps: ${what} is an evaluation, which has no steps. Leave it out.`);
  if (store !== undefined)
    throw new RatchetError('ConfigInvalid', `--store: ${what} is the folder of an evaluation, which says by itself where it is. Leave it out.`); // prettier-ignore
  const environment = await asItIsNow(found.evaluation.input.environment);
  return {
    subject: { kind: 'evaluation', place: base },
    place: base,
    environments: [environment],
    base,
    mayFork: false,
  };
}

/** A run whose folder was typed. */
function runIn(what: string): Promise<RunPlace> | null {
  const folder = path.resolve(what);
  const name = path.basename(folder);
  if (!runNamePattern.test(name) || !existsSync(path.join(folder, layout.run()))) return null;
  return Promise.resolve({ name, store: resolveStoreUri(path.dirname(folder), folder) });
}

async function runAt(what: string, { steps, store }: RescoreOptions): Promise<Found> {
  const place = await (runIn(what) ?? findRunFolder(what, store)).catch((error: unknown) => {
    if (!(error instanceof RatchetError) || error.code !== 'RunNotFound') throw error;
    throw new RatchetError(
      'RunNotFound',
      `${what}: expected a run, or the folder of an evaluation that Ratchet made (outputs/evals/ENV--MODEL/ID; npx ratchet-rl eval list). ${error.message}`,
      { cause: error },
    );
  });
  const head = await headStep(place);
  const { spec } = await storedSpec(place);
  const environments: EvaluatedEnvironment[] = [];
  for (const entry of spec.environments) environments.push(await asItIsNow(entryOf(entry)));
  const range = steps === undefined ? { first: 1, last: head } : readRange(steps, head);
  return {
    subject: { kind: 'run', ...place, steps: range },
    place,
    environments,
    base: { ...place, prefix: '' },
    mayFork: spec.maxAsyncLevel === 0,
  };
}

/** `10-20`, `10`, `10-`. */
function readRange(text: string, head: number): { readonly first: number; readonly last: number } {
  const [, first, dash, last] = /^(\d{1,9})(?:(-)(\d{1,9})?)?$/.exec(text.trim()) ?? [];
  const range = { first: Number(first), last: last === undefined ? (dash === undefined ? Number(first) : head) : Number(last) }; // prettier-ignore
  if (first !== undefined && range.first >= 1 && range.first <= range.last && range.last <= head) return range;
  throw new RatchetError('ConfigInvalid', `--steps: expected steps from 1 to ${head}, as in --steps 10-20; got ${JSON.stringify(text)}.`); // prettier-ignore
}

function limitOf({ maxJudgeCalls, maxJudgeTokens }: RescoreOptions): Partial<JudgeUse> | undefined {
  if (maxJudgeCalls === undefined && maxJudgeTokens === undefined) return undefined;
  const read = (option: string, value: string | undefined) => (value === undefined ? undefined : readCount(option, value)); // prettier-ignore
  return present({
    calls: read('--max-judge-calls', maxJudgeCalls),
    tokens: read('--max-judge-tokens', maxJudgeTokens),
  });
}

/** Judges that Python asks are not counted here, so a limit on them would hold nothing. */
function requireCounted(scoring: readonly EvaluatedEnvironment[]): void {
  const python = scoring.find((one) => one.python !== undefined);
  if (python === undefined) return;
  throw new RatchetError(
    'Unsupported',
    `--max-judge-calls, --max-judge-tokens: ${python.name} is in Python, and asks its judges itself, where Ratchet does not count them. Leave the limit out, or name a rubric in TypeScript.`,
  );
}

/** The first number under which nothing was rescored. */
async function nextFresh(base: EvaluationPlace, asked: Parameters<typeof rescoreId>[0]): Promise<number> {
  const keys = await storeOf(base).list(rescoreKeys.all(base.prefix));
  for (let fresh = 0; ; fresh++) {
    const prefix = rescoreKeys.place(base.prefix, rescoreId(asked, fresh));
    if (!keys.some((key) => key.startsWith(prefix))) return fresh;
  }
}

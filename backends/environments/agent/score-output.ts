import type { Judgement } from '../../../core/rl/rollout/rollout.ts';
import type { ProgramScore } from '../../../core/settings/programs.ts';
import type { CommandResult } from '../../sandboxes/types.ts';
import { howItFailed } from './program-sandbox.ts';

/** Most metrics of a rollout, and characters of a name: each is a column of results. */
const metricsMax = 64;
const nameCharsMax = 64;

/** Codes by which shells say that a command did not run. */
const notRun: ReadonlySet<number> = new Set([126, 127]);

/** What a scoring command said of a rollout; `error` where it said nothing: that is never a reward of 0. */
export function judgementOfCommand(
  { code, signal, stdout, stderr, isTimedOut }: CommandResult,
  { reads, timeoutS, command }: Pick<ProgramScore, 'reads' | 'timeoutS' | 'command'>,
): Judgement {
  const said = (what: string): Judgement => ({
    error: `score.command ${JSON.stringify(command)} ${what}.${shown(stdout, stderr)}`,
  });
  if (isTimedOut) return said(`did not end within ${timeoutS} s`);
  if (code === null) return said(`was ended by ${signal ?? 'a signal'}`);
  if (notRun.has(code)) return said(`could not be run: it ${howItFailed({ code, signal })!}`);
  if (reads === 'exit_code') return { reward: code === 0 ? 1 : 0, metrics: { exit_code: code } };
  if (code !== 0) return said(`ended with exit code ${code}, so what it printed does not count`);
  return readJudgement(lastLine(stdout)) ?? said('printed no reward: expected a number, or {"reward": …, "metrics": {…}}, in the last line'); // prettier-ignore
}

/** A number, or an object with a reward and metrics, as JSON; null for anything else. */
export function readJudgement(text: string): Exclude<Judgement, { readonly error: string }> | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  return judgementOf(value);
}

/** The same of a value. */
export function judgementOf(value: unknown): Exclude<Judgement, { readonly error: string }> | null {
  if (isFinite(value)) return { reward: value, metrics: {} };
  if (typeof value !== 'object' || value === null) return null;
  const { reward, metrics = {} } = value as { readonly reward?: unknown; readonly metrics?: unknown };
  if (!isFinite(reward) || typeof metrics !== 'object' || metrics === null) return null;
  const entries = Object.entries(metrics as Readonly<Record<string, unknown>>);
  const isRight = ([name, number]: readonly [string, unknown]): boolean =>
    name !== '' && name.length <= nameCharsMax && isFinite(number);
  if (entries.length > metricsMax || !entries.every(isRight)) return null;
  return { reward, metrics: Object.fromEntries(entries) as Record<string, number> };
}

function isFinite(value: unknown): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1)!.trim();
}

const shownChars = 600;

function shown(stdout: string, stderr: string): string {
  const parts = Object.entries({ stdout, stderr }).filter(([, text]) => text.trim() !== '');
  return parts.map(([name, text]) => `\n${name}: ${text.trimEnd().slice(-shownChars)}`).join('');
}

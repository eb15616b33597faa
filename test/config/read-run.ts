/** Assertions on a text: that it is a run, or what is wrong with it. */
import assert from 'node:assert/strict';
import { formatProblems, parseRunConfig, type Problem } from '../../config/parse-run-config.ts';
import type { ParseOptions } from '../../config/run-config.ts';

/** A dialect by its name, or anything that may be said beside a text. */
type How = string | Partial<ParseOptions>;

function read(text: string, how: How) {
  return parseRunConfig(text, { file: 'run.toml', ...(typeof how === 'string' ? { dialect: how } : how) });
}

/** The run that a text says. */
export function accept(text: string, how: How = {}) {
  const parsed = read(text, how);
  assert.ok(parsed.ok, parsed.ok ? '' : formatProblems(parsed.problems));
  return parsed;
}

/** All that is wrong with it. */
export function refuse(text: string, how: How = {}): Problem[] {
  const parsed = read(text, how);
  assert.ok(!parsed.ok, 'was accepted');
  return parsed.problems;
}

/** The one problem it has. */
export function only(text: string, how: How = {}): Problem {
  const problems = refuse(text, how);
  assert.equal(problems.length, 1, formatProblems(problems));
  return problems[0]!;
}

import { createHash } from 'node:crypto';
import path from 'node:path';
import { openEnvironment } from '../../backends/environments/index.ts';
import { openRubric } from '../../backends/environments/other-rubric.ts';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { RescoreInput } from '../../core/eval/rescore.ts';
import { RatchetError } from '../../core/errors.ts';
import { jsonOrNull } from '../../core/json-or-null.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import { present } from '../../core/present.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { readRegular } from '../../host/regular-file.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { findEvaluatedEnvironment } from '../../load/evaluations/evaluated-environment.ts';
import { requireStored } from '../../play/rescoring/opened-rubrics.ts';

/**
 * Refuses what scores in place before anything starts. What is in Python is opened by a worker alone, and one that
 * cannot be opened here may be there: those are refused by the rescore itself.
 */
export async function refuseInPlace({
  environments,
  rubric,
}: Pick<RescoreInput, 'environments' | 'rubric'>): Promise<void> {
  for (const entry of rubric === null ? environments : [rubric]) {
    const { name, program, python } = entry;
    if (program !== undefined)
      requireStored({ name, scoring: program.score.command === null ? 'stored' : 'in_place' }, name);
    if (program !== undefined || python !== undefined) continue;
    const bare = { ...entry, variables: undefined };
    const opened = await (rubric === null ? openEnvironment(bare) : openRubric({ open: openEnvironment }, bare)).catch(
      () => null,
    );
    if (opened !== null) requireStored(opened, rubric === null ? name : '');
  }
}

/** The fields by which it is opened, without those of training. */
export function entryOf(entry: EvaluatedEnvironment): EvaluatedEnvironment {
  const { id, name, args, sha256, python, program, variables, systemPrompt, agent, extra, stateColumns } = entry;
  return {
    id,
    name,
    args,
    ...present({ sha256, python, program, variables, systemPrompt, agent, extra, stateColumns }),
  };
}

/** A file of the user's with the contents that it has now: a repaired reward function is why people rescore. */
export async function asItIsNow(entry: EvaluatedEnvironment): Promise<EvaluatedEnvironment> {
  if (entry.python !== undefined || !isEnvironmentFile(entry.id)) return entry;
  return { ...entry, sha256: await digestOf(entry.id) };
}

async function digestOf(file: string): Promise<string> {
  const bytes = await readRegular(trustedFile(file, 'The environment'));
  return createHash('sha256').update(bytes).digest('hex');
}

/** A file, or an environment by its id: one of the project, an installed package of verifiers, or a built-in. */
export async function rubricAt(written: string, args: string | undefined): Promise<EvaluatedEnvironment> {
  // A name with a suffix is a file here, also without ./ before it.
  const id = /^[^/\\]+\.[mc]?[jt]s$/.test(written) ? `./${written}` : written;
  const own = { args: args === undefined ? {} : readArgs(args), extraKwargs: {}, variables: [], taskset: null, harness: null }; // prettier-ignore
  const named = { environment: { id, name: written, ...own } };
  const { environment } = await findEvaluatedEnvironment(named, { projectFolder: process.cwd(), builtin: false });
  const entry = entryOf(environment);
  return isEnvironmentFile(entry.id) ? { ...entry, name: path.basename(entry.id) } : entry;
}

function readArgs(text: string): Record<string, JsonValue> {
  const value = jsonOrNull(text);
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, JsonValue>;
  throw new RatchetError('ConfigInvalid', `--args: expected a JSON object, as in --args '{"strict": true}'; got ${JSON.stringify(text)}.`); // prettier-ignore
}

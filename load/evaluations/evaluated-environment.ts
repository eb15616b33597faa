import { createHash } from 'node:crypto';
import path from 'node:path';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import { RatchetError } from '../../core/errors.ts';
import { isEnvironmentFile } from '../../core/names.ts';
import type { EvaluationSpec } from '../../config/evaluations/eval-file.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { present } from '../../core/present.ts';
import { readRegular } from '../../host/regular-file.ts';
import { trustedFile } from '../../host/trusted-files.ts';
import { environmentFinder } from '../../backends/environments/find.ts';
import { readPrompt } from '../grants/prompt-files.ts';
import { Refused } from '../refused.ts';

/** The fields by which it is found and opened. */
type WrittenEnvironment = Pick<
  EvaluationSpec['environment'],
  'id' | 'name' | 'args' | 'extraKwargs' | 'variables' | 'taskset' | 'harness'
>;

/** An environment as people write it, found and named as evaluations know it. Throws `ConfigInvalid`. */
export async function findEvaluatedEnvironment(
  {
    environment: { id, name, args, extraKwargs: extra, variables, taskset, harness },
  }: { readonly environment: WrittenEnvironment },
  { projectFolder, builtin }: { readonly projectFolder: string; readonly builtin: boolean },
): Promise<{ environment: EvaluatedEnvironment; said: string | null }> {
  const found = environmentFinder({ projectFolder })(id, { builtin });
  if (!found.ok) {
    const hint = found.suggestion === undefined ? '' : ` ${asSentence(found.suggestion)}`;
    throw new RatchetError('ConfigInvalid', `${id}: expected ${found.expected}, received ${found.received}.${hint}`);
  }
  const said = found.said ?? null;
  const named = {
    name,
    args,
    ...present({ variables: variables.length === 0 ? undefined : { names: [...new Set(variables)], files: [] } }),
  };
  if (found.python) {
    const own = found.python.api === 'v1' ? v1Args(named.args, taskset, harness) : named.args;
    const set = Object.keys(extra).length === 0 ? {} : { extra };
    return { said, environment: { ...named, args: own, id: found.id, python: found.python, ...set } };
  }
  if (Object.keys(extra).length > 0) {
    throw new RatchetError('ConfigInvalid', `${id}: extra_env_kwargs are for environments written with verifiers.`);
  }
  if (!isEnvironmentFile(found.id)) return { said, environment: { ...named, id: found.id } };
  const file = path.resolve(projectFolder, found.id);
  const sha256 = createHash('sha256')
    .update(await readRegular(trustedFile(file, 'The environment')))
    .digest('hex');
  return { said, environment: { ...named, id: file, sha256 } };
}

function asSentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.?!]$/.test(text) ? '' : '.'}`;
}

function v1Args(
  args: Record<string, JsonValue>,
  taskset: EvaluationSpec['environment']['taskset'],
  harness: EvaluationSpec['environment']['harness'],
): Record<string, JsonValue> {
  return {
    ...args,
    ...present({ taskset: taskset ?? undefined, agent: harness === null ? undefined : { harness } }),
  };
}

/** The environment under a system prompt as written: a text, or a file of the project. Throws `ConfigInvalid`. */
export async function withPrompt(
  environment: EvaluatedEnvironment,
  written: string | undefined,
  { projectFolder, ownPrompts }: { readonly projectFolder: string; readonly ownPrompts: readonly unknown[] },
): Promise<EvaluatedEnvironment> {
  if (written === undefined) return environment;
  const resolve = (name: string): string => path.resolve(projectFolder, name);
  const { text } = await readPrompt(written, resolve, () => ownPrompts.includes(written)).catch((error: unknown) => {
    if (!(error instanceof Refused)) throw error;
    const { suggestion } = error.said;
    const whole = suggestion === undefined ? error.message : `${error.message}; ${suggestion}`;
    throw new RatchetError('ConfigInvalid', `${environment.name}: system_prompt: ${whole}.`, { cause: error });
  });
  return { ...environment, systemPrompt: text };
}

import { createHash } from 'node:crypto';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import type { JsonValue } from '../../config/run-spec.ts';
import { grants, requireGrant } from '../../host/grants.ts';

type Entry = Pick<EvaluatedEnvironment, 'id' | 'args' | 'python' | 'agent' | 'extra' | 'variables' | 'program'>;

/**
 * Lines that identify an environment with its arguments as named by this user; empty for one in TypeScript whose
 * arguments name no server. Arguments change the behaviour of our code too: in v1 they set variables of the agent's
 * program, in v0 they reach load_environment, and a judge among them is a server that receives a key. A Python
 * environment also receives variables, by name or from a file; they are named together with it, a line each. So does an
 * agent, which is named with all that it runs.
 */
export function asNamed({ id, python, args, agent = {}, extra = {}, variables, program }: Entry): string[] {
  const isOurs = python === undefined && program === undefined;
  if (isOurs && !namesServer(args)) return [];
  const loaded = program
    ? { id, program }
    : python === undefined
      ? { id, args }
      : { module: python.module, args, agent, extra };
  const digest = createHash('sha256').update(canonical(loaded)).digest('hex');
  const line = `${grants.environment}${digest}`;
  const told = isOurs ? [] : [...(variables?.names ?? []), ...(variables?.files ?? [])];
  return [line, ...told.map((name) => `${grants.key}${name} ${line}`)];
}

/** Refuses an environment with arguments that this user did not name, when other users may name some. */
export function requireNamed(entry: Entry): void {
  for (const line of asNamed(entry))
    requireGrant(line, `The environment ${entry.id} with these arguments and variables`);
}

/** Whether they contain a URL, or the name of a variable with a key. */
function namesServer(args: JsonValue | Entry['args']): boolean {
  // URLs are read without tabs and line breaks, and `http:host` is one as well.
  if (typeof args === 'string') return /:\/\/|https?:/i.test(args.replaceAll(/[\t\r\n]/g, ''));
  if (typeof args !== 'object' || args === null) return false;
  return Object.entries(args).some(([key, value]) => /(?:_var|Var)$/.test(key) || namesServer(value));
}

import { createHash } from 'node:crypto';
import { canonical } from '../../core/eval/same-evaluation.ts';
import type { EvaluatedEnvironment } from '../../core/eval/evaluation.ts';
import { grants, requireGrant } from '../../engine/trusted-files.ts';

type Entry = Pick<EvaluatedEnvironment, 'id' | 'args' | 'python' | 'agent' | 'extra'>;

/**
 * An environment in Python with what it is loaded with, as this user named it; nothing for others. Its package may be ours and its
 * arguments still make it run something else: of v1 they set variables of the agent's program, of v0 whatever its load_environment does.
 */
export function asNamed({ python, args, agent = {}, extra = {} }: Entry): [line: string] | null {
  if (python === undefined) return null;
  const loaded = canonical({ module: python.module, args, agent, extra });
  return [`${grants.environment}${createHash('sha256').update(loaded).digest('hex')}`];
}

/** Refuses an environment in Python that nobody named, where anybody may ask for one. */
export function requireNamed(entry: Entry): void {
  const [line] = asNamed(entry) ?? [];
  if (line !== undefined) requireGrant(line, `The Python environment ${entry.id} with these arguments`);
}

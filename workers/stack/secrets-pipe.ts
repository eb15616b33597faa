import { readSync } from 'node:fs';
import { makeSecret } from '../../host/project-secret.ts';
import {
  environmentForRoles,
  secretVariable,
  selectEnvironment,
  temporalSecrets,
  withoutVariables,
} from '../../core/child-environment.ts';

/**
 * How a supervisor passes secrets to a worker: a line of JSON on its stdin, and not its environment, which every
 * process of the user can read. Importing `take-secrets.ts` first puts them into `process.env`.
 */
const secretsVariable = 'RATCHET_SECRETS';
const onStdin = 'stdin';

/** The project's secret, which every role gets; made if it is missing. */
export function secretsOfProject(
  projectFolder: string,
  environment: Readonly<NodeJS.ProcessEnv>,
): Record<string, string> {
  return { [secretVariable]: makeSecret(projectFolder, environment) };
}

/**
 * Splits an environment: variables given at the start, and those sent through the pipe because not every role gets
 * them.
 */
export function splitSecrets(env: Readonly<Record<string, string>>): {
  readonly open: Record<string, string>;
  readonly secrets: Record<string, string>;
} {
  const open = withoutVariables([...temporalSecrets, secretVariable], selectEnvironment(environmentForRoles, env));
  return { open: { ...open, [secretsVariable]: onStdin }, secrets: withoutVariables(Object.keys(open), env) };
}

/** Reads the secrets, if any: byte by byte, so that later input stays unread. */
export function takeSecrets(env: NodeJS.ProcessEnv = process.env): void {
  if (env[secretsVariable] !== onStdin) return;
  delete env[secretsVariable];
  const bytes: number[] = [];
  const one = Buffer.alloc(1);
  while (readOne(one) === 1 && one[0] !== newline) bytes.push(one[0]!);
  if (bytes.length === 0) return; // the sender is gone, and this process will be ended, too
  Object.assign(env, JSON.parse(Buffer.from(bytes).toString('utf8')));
}

const newline = 10;

function readOne(into: Buffer): number {
  for (;;) {
    try {
      return readSync(0, into, 0, 1, null);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

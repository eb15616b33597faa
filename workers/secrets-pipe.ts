import { readSync } from 'node:fs';
import { makeSecret } from '../engine/project-secret.ts';
import {
  environmentForRoles,
  secretVariable,
  selectEnvironment,
  temporalSecrets,
  withoutVariables,
} from '../core/child-environment.ts';

/**
 * How a supervisor hands secrets to a worker: a line of JSON on its stdin, and not the environment that it is started with, which every
 * process of the user may read as long as it lives. Importing `take-secrets.ts` first puts them into `process.env`.
 */
const secretsVariable = 'RATCHET_SECRETS';
const onStdin = 'stdin';

/** The project's secret, which every role is handed. It is made if it is missing. */
export function secretsOfProject(
  projectFolder: string,
  environment: Readonly<NodeJS.ProcessEnv>,
): Record<string, string> {
  return { [secretVariable]: makeSecret(projectFolder, environment) };
}

/** What of an environment is started with, and what comes by the pipe: all that not every role gets. */
export function splitSecrets(env: Readonly<Record<string, string>>): {
  readonly open: Record<string, string>;
  readonly secrets: Record<string, string>;
} {
  const open = withoutVariables([...temporalSecrets, secretVariable], selectEnvironment(environmentForRoles, env));
  return { open: { ...open, [secretsVariable]: onStdin }, secrets: withoutVariables(Object.keys(open), env) };
}

/** Reads them where there are any: byte by byte, so that what comes after them stays where it is. */
export function takeSecrets(env: NodeJS.ProcessEnv = process.env): void {
  if (env[secretsVariable] !== onStdin) return;
  delete env[secretsVariable];
  const bytes: number[] = [];
  const one = Buffer.alloc(1);
  while (readOne(one) === 1 && one[0] !== newline) bytes.push(one[0]!);
  if (bytes.length === 0) return; // whoever should have told them is gone, and this process will be
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

import { spawn } from 'node:child_process';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { environmentForAll, selectEnvironment } from '../../../core/child-environment.ts';
import { RatchetError } from '../../../core/errors.ts';
import { type ChildPatience, childPatience, watchChild } from '../../child-progress.ts';
import type { VerifiersApi } from './requirement.ts';

const program = fileURLToPath(new URL('../../../python/ratchet_bridge/check.py', import.meta.url));

const ImportFailure = z.object({
  type: z.string(),
  message: z.string(),
  traceback: z.string(),
  /** A module that is not there. */
  missing: z.string().nullable(),
  /** The missing one is the package's own. */
  own: z.boolean(),
  /** file:line, nearest to the failure, in the package. */
  place: z.string().nullable(),
});

const Probe = z.discriminatedUnion('ok', [
  z.object({
    ok: z.literal(true),
    file: z.string().nullable(),
    load_environment: z.boolean(),
    taskset: z.string().nullable(),
  }),
  z.object({ ok: z.literal(false), error: ImportFailure }),
]);
export type Probe = z.infer<typeof Probe>;
export type ImportFailure = z.infer<typeof ImportFailure>;

/** Imports a module in a process of its own and says what it has. Runs the package's code, so only where a person asked for it. */
export async function probeModule(
  python: string,
  module: string,
  api: VerifiersApi,
  patience: ChildPatience = childPatience(),
): Promise<Probe> {
  // -P: the folder of the program is not where modules are looked for.
  const child = spawn(python, ['-P', program, 'probe', module, api], {
    cwd: tmpdir(),
    env: selectEnvironment([...environmentForAll, 'HF_*'], process.env),
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const watch = watchChild(child.pid, patience);
  let givenUp = '';
  void watch.over.then((why) => {
    givenUp = ` (${why})`;
    child.kill('SIGKILL');
  });
  let answer = '';
  let log = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    answer += text;
    watch.heard();
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    log = (log + text).slice(-4_000);
    watch.heard();
  });
  const ended = await new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) => resolve(signal ?? `exit code ${code}`));
  });
  watch.end();
  const line = answer.trim().split('\n').at(-1) ?? '';
  if (line !== '') return Probe.parse(JSON.parse(line));
  throw new RatchetError(
    'ConfigInvalid',
    `import ${module} ended its Python with ${ended}${givenUp}${log === '' ? '' : `:\n${log.trim()}`}`,
  );
}

import { spawn } from 'node:child_process';
import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { environmentForAll, selectEnvironment } from '../../../core/child-environment.ts';
import { RatchetError } from '../../../core/errors.ts';
import { type ChildPatience, childPatience, watchChild } from '../../../host/child-progress.ts';
import type { VerifiersApi } from './requirement.ts';

const program = fileURLToPath(new URL('../../../python/ratchet_bridge/check.py', import.meta.url));

const ImportFailure = z.object({
  type: z.string(),
  message: z.string(),
  traceback: z.string(),
  missing: z.string().nullable(),
  /** Whether the missing module is the package's own. */
  own: z.boolean(),
  /** file:line in the package, nearest to the failure. */
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

/**
 * Imports a module in a process of its own and reports its API. Runs the package's code, so only at a person's request.
 */
export async function probeModule(
  python: string,
  module: string,
  api: VerifiersApi,
  patience: ChildPatience = childPatience(),
): Promise<Probe> {
  // -P: modules are not searched in the program's folder.
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

/** Commands in one process, one after the other: loading the program anew takes longer than most of them. See `cli-process.ts`. */
import { AsyncLocalStorage } from 'node:async_hooks';
import { runTyped } from '../../cli/run-command.ts';
import { holdSecret } from '../../host/project-secret.ts';
import type { Asked, Answered } from './cli-process.ts';

class Left extends Error {}

const exit = process.exit.bind(process);
/** Exit code of the command under way, from `process.exit`. */
let left: number | undefined;
let underWay: number | null = null;
const commands = new AsyncLocalStorage<number>();
/** An answered command may still exit later, as a worker that could not be opened does: the next one continues. */
process.exit = (code?: number | string | null) => {
  if (commands.getStore() === underWay) left = code === undefined || code === null ? exitCode() : Number(code);
  throw new Left();
};
const write = { out: process.stdout.write.bind(process.stdout), err: process.stderr.write.bind(process.stderr) };
/** More is not looked at. */
const charsKept = 200_000;

/** Each command gets these variables, whatever the one before it did to them. */
const variables = { ...process.env };

process.umask(process.umask() | 0o007); // as cli/ratchet.mjs
process.on('uncaughtException', (error) => {
  if (!(error instanceof Left)) throw error;
});
process.on('message', (asked: Asked) => void answer(asked));
process.on('disconnect', () => exit());
process.send!({ id: -1, code: 0, text: '', out: '', err: '', chars: 0 } satisfies Answered);

async function answer({ id, args, folder, env }: Asked): Promise<void> {
  const said = { text: '', out: '', err: '' };
  let chars = 0;
  left = undefined;
  underWay = id;
  const takes =
    (stream: 'out' | 'err') =>
    (piece: string | Uint8Array, encoding?: unknown, done?: unknown): boolean => {
      if (left !== undefined) return true; // what is said of being stopped here is the harness's own
      const words = typeof piece === 'string' ? piece : Buffer.from(piece).toString('utf8');
      chars += words.length;
      for (const kept of ['text', stream] as const)
        if (said[kept].length < charsKept) said[kept] += words.slice(0, charsKept);
      const told = [encoding, done].find((one): one is () => void => typeof one === 'function');
      if (told) setImmediate(told);
      return true;
    };
  process.chdir(folder);
  process.exitCode = undefined;
  process.stdout.write = takes('out');
  process.stderr.write = takes('err');
  try {
    for (const name of Object.keys(process.env)) if (!(name in variables)) delete process.env[name];
    Object.assign(process.env, variables, env);
    holdSecret(folder);
    await commands.run(id, () => runTyped(['node', 'ratchet', ...args]));
  } catch (error) {
    if (!(error instanceof Left)) said.text += error instanceof Error ? error.stack : String(error);
  } finally {
    process.stdout.write = write.out;
    process.stderr.write = write.err;
    underWay = null;
  }
  const code = left ?? exitCode();
  process.exitCode = undefined;
  process.send!({ id, code, ...said, chars } satisfies Answered);
}

function exitCode(): number {
  return Number(process.exitCode ?? 0);
}

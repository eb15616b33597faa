/** Commands in one process, one after the other: loading the program anew takes longer than most of them. See `cli-process.ts`. */
import { runTyped } from '../../cli/run-command.ts';
import type { Asked, Answered } from './cli-process.ts';

class Left extends Error {}

const exit = process.exit.bind(process);
/** What the command under way left with, by `process.exit`. */
let left: number | undefined;
let isUnderWay = false;
/** A command that has been answered may still leave, as `status` does when its last words are written: the next one goes on. */
process.exit = (code?: number | string | null) => {
  if (isUnderWay) left = code === undefined || code === null ? exitCode() : Number(code);
  throw new Left();
};
const write = { out: process.stdout.write.bind(process.stdout), err: process.stderr.write.bind(process.stderr) };
/** More is not looked at. */
const charsKept = 200_000;

process.on('uncaughtException', (error) => {
  if (!(error instanceof Left)) throw error;
});
process.on('message', (asked: Asked) => void answer(asked));
process.on('disconnect', () => exit());
process.send!({ id: -1, code: 0, text: '', chars: 0 } satisfies Answered);

async function answer({ id, args, folder }: Asked): Promise<void> {
  let text = '';
  let chars = 0;
  left = undefined;
  isUnderWay = true;
  const take = (piece: string | Uint8Array, encoding?: unknown, done?: unknown): boolean => {
    if (left !== undefined) return true; // what is said of being stopped here is the harness's own
    const words = typeof piece === 'string' ? piece : Buffer.from(piece).toString('utf8');
    chars += words.length;
    if (text.length < charsKept) text += words.slice(0, charsKept);
    const told = [encoding, done].find((one): one is () => void => typeof one === 'function');
    if (told) setImmediate(told);
    return true;
  };
  process.chdir(folder);
  process.exitCode = undefined;
  process.stdout.write = take;
  process.stderr.write = take;
  try {
    await runTyped(['node', 'ratchet', ...args]);
  } catch (error) {
    if (!(error instanceof Left)) text += error instanceof Error ? error.stack : String(error);
  } finally {
    process.stdout.write = write.out;
    process.stderr.write = write.err;
    isUnderWay = false;
  }
  const code = left ?? exitCode();
  process.exitCode = undefined;
  process.send!({ id, code, text, chars } satisfies Answered);
}

function exitCode(): number {
  return Number(process.exitCode ?? 0);
}

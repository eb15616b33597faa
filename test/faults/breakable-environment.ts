/** An environment of a user's that breaks when a fault asks for it, and how the workers of a stage come to load it. */
import { appendFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../backends/environments/types.ts';
import { failpoint } from '../../store/failpoints.ts';
import { isErrno } from '../../store/file-store.ts';
import type { Example, Turn } from '../../core/rl/rollout/rollout.ts';
import { programArguments } from '../../workers/stack/roles.ts';
import type { Role } from '../../workers/stack/supervisor.ts';

/**
 * Failpoints of the environment. `fail` = it throws there; `repeat` = it hangs there forever, and a rollout that hung
 * once hangs on every retry.
 */
export const breaks = {
  demonstrate: 'environment.demonstrate',
  rollout: 'environment.rollout',
  score: 'environment.score',
} as const;

const worker = fileURLToPath(new URL('breakable-worker.ts', import.meta.url));
const said = 'the sandbox is gone';

/** A worker's own program, with this environment in place of what is installed. */
export function withBreakableEnvironment(role: Role): Role {
  const own = programArguments('worker');
  const isWorker = own.every((argument, i) => role.args[i] === argument);
  return isWorker
    ? { ...role, args: ['--import', import.meta.resolve('tsx'), worker, ...role.args.slice(own.length)] }
    : role;
}

/** Declared as multi-turn, so that the turns of a rollout that hangs are kept and not sampled again. */
export function breakable(words: Environment): Environment {
  return {
    ...words,
    isSingleTurn: false,
    demonstrate(example, random) {
      raiseOnce(breaks.demonstrate);
      return words.demonstrate!(example, random);
    },
    async rollout(example, policy) {
      const record = await words.rollout(example, policy);
      await breakHere(breaks.rollout, placeOf(example, record.turns));
      return record;
    },
    rubric: {
      functions: words.rubric.functions.map((judge, i) => ({
        ...judge,
        async score(rollout: Parameters<typeof judge.score>[0]) {
          if (i === 0) await breakHere(breaks.score, null);
          return judge.score(rollout);
        },
      })),
    },
  };
}

function placeOf({ id }: Example, turns: readonly Turn[]): string {
  return JSON.stringify([id, ...turns.map(({ text }) => text)]);
}

/** `place`: where it hangs again once it did; null = nowhere. */
async function breakHere(name: string, place: string | null): Promise<void> {
  const hung = fileOf('environment.hung');
  const hangsAgain = place !== null && existsSync(hung) && readFileSync(hung, 'utf8').split('\n').includes(place);
  if (!hangsAgain) {
    const { isRepeated } = await failpoint(name).catch((cause: unknown) => {
      throw new Error(said, { cause }); // what a user's code throws is none of Ratchet's own
    });
    if (!isRepeated) return;
    if (place !== null) appendFileSync(hung, `${place}\n`);
  }
  await new Promise(() => undefined);
}

/** A failpoint for what cannot wait; it fires at its first passing. */
function raiseOnce(name: string): void {
  if (!existsSync(fileOf(`${name}.json`))) return;
  const fired = JSON.stringify({ pid: process.pid, time: new Date().toISOString() });
  try {
    writeFileSync(fileOf(`${name}.fired.1`), fired, { flag: 'wx' });
  } catch (error) {
    if (isErrno(error, 'EEXIST')) return;
    throw error;
  }
  throw new Error(said);
}

function fileOf(name: string): string {
  return path.join(process.env['RATCHET_FAILPOINTS']!, name);
}

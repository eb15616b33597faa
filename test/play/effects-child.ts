/**
 * A process that plays rollouts with calls that have effects: `node … effects-child.ts STORE CALLS SEED`. It appends each
 * call that it makes to the file CALLS, goes on from what is in the folder STORE, and ends when all rollouts are stored
 * there. What the policy says, and what tools answer, is new each time.
 */
import { appendFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { effect, listDataset, rubric, tool, toolEnvironment, z } from '../../backends/environments/kit.ts';
import type { Rollout, Turn } from '../../core/rl/rollout/rollout.ts';
import { playRollout } from '../../play/play-rollout.ts';
import type { PlayedPolicy } from '../../play/policy/sample-policy.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import { FileStore } from '../../store/file-store.ts';

export const childProgram = fileURLToPath(import.meta.url);
export const chunkPrefix = 'rollouts/step_1/groups_1-8/chunk_1_of_1/';
export const rolloutsOfChild = 8;
export const turnsOfChild = 5;
const kinds = ['once', 'keyed', 'idempotent'] as const;

/** The stored rollouts, and those that are open are played. */
async function playAll(folder: string, calls: string): Promise<void> {
  const store = new FileStore(folder);
  const journal = await RolloutJournal.open(store, chunkPrefix, 'leases', { notes: `${chunkPrefix}notes_` });
  const environment = environmentOf(calls);
  const { signal } = new AbortController();
  const play = async (group: number): Promise<void> => {
    const place = { group, index: 0, exampleId: 0 };
    if (journal.has(place)) return;
    const rollout = await playRollout({
      environments: { open: () => Promise.resolve(environment), reopen: () => Promise.resolve(environment) },
      entry: { id: 'effects', args: {} },
      dataset: 'dataset',
      place,
      together: { group: `${group}`, size: 1 },
      openPolicy: () => policyOf(journal, place),
      notes: journal.notes.of(place),
      recorded: () => journal.turnsOf(place),
      signal,
    });
    journal.add(rollout);
    await journal.settle(signal);
  };
  process.stdout.write('playing\n');
  await Promise.all(Array.from({ length: rolloutsOfChild }, (_, i) => play(i + 1)));
}

function environmentOf(calls: string) {
  const rows = [0, 1].map((i) => ({ prompt: `task ${i}`, answer: '' }));
  const tools = kinds.map((kind) =>
    effect(
      tool({
        name: kind,
        description: 'Changes something.',
        parameters: z.object({ word: z.string() }),
        run: async ({ word }, { idempotencyKey }) => {
          await delay(Math.random() * 6);
          appendFileSync(calls, `${kind} ${word} ${idempotencyKey}\n`);
          await delay(Math.random() * 6);
          return `done ${Math.random()}`;
        },
      }),
      { kind },
    ),
  );
  return toolEnvironment({
    name: 'effects',
    dataset: listDataset(rows.slice(0, 1)),
    evalDataset: listDataset(rows.slice(1)),
    rubric: rubric([{ name: 'always', weight: 1, score: () => 1 }]),
    tools,
    maxTurns: turnsOfChild + 1,
    isDeterministic: false,
  });
}

function policyOf(journal: RolloutJournal, place: Pick<Rollout, 'group' | 'index'>): PlayedPolicy {
  const turns: Turn[] = [];
  const recorded = journal.turnsOf(place);
  return {
    turns,
    failure: undefined,
    sample: async () => {
      const position = turns.length;
      const turn = recorded[position] ?? newTurn(position);
      turns.push(turn);
      if (recorded[position] === undefined) {
        await delay(Math.random() * 4);
        journal.addTurn({ ...place, turn: position, ...turn });
      }
      return turn;
    },
  };
}

function newTurn(position: number): Turn {
  const kind = kinds[Math.floor(Math.random() * kinds.length)]!;
  const word = `${Math.random()}`.slice(2);
  const toolCalls = [{ name: kind, arguments: JSON.stringify({ word }) }];
  return {
    promptTokenIds: [1],
    tokenIds: [2],
    logprobs: [0],
    text: `turn ${position} ${word}`,
    ...(position < turnsOfChild ? { toolCalls } : {}),
    finishReason: 'stop',
    policyStep: 0,
  };
}

const [, program, folder, calls] = process.argv;
if (program === childProgram && folder !== undefined && calls !== undefined) {
  await playAll(folder, calls).catch((error: Error) => {
    process.stdout.write(`${error.name}\n`);
    process.exitCode = 1;
  });
}

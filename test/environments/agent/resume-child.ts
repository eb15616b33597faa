/** One attempt at a rollout of a program that goes on in snapshots. Its argument is the JSON of a `ResumedLife`. */
import { openAgent } from '../../../backends/environments/agent/agent-environment.ts';
import type { RolloutNotes } from '../../../core/rl/rollout/notes.ts';
import { closeProcesses } from '../../../host/processes-open.ts';
import { recordTurn } from '../../../play/training-players.ts';
import { sandboxesFor } from '../../../play/sandboxes/rollout-sandboxes.ts';
import { RolloutJournal } from '../../../runs/rollouts/rollout-journal.ts';
import { openRunStore } from '../../../store/index.ts';
import type { ResumedLife } from './resumed-life.ts';
import { scriptedPolicy } from './scripted-policy.ts';

const life = JSON.parse(process.argv[2]!) as ResumedLife;
const { program, store: storeUri, hangsAt, folders = [], answers } = life;
const prefix = 'rollouts/step_1/groups_1-2/chunk_1_of_1/';
const place = { group: 1, index: 0, exampleId: 0 };
const { signal } = new AbortController();
const say = (...words: readonly unknown[]): void => void process.stdout.write(`${words.join(' ')}\n`);

const store = openRunStore(storeUri, 'run');
const journal = await RolloutJournal.open(store, prefix, 'leases', { notes: `${prefix}notes_`, signal });
const written = journal.notes.of(place);
const notes: RolloutNotes = {
  put: async (kind, key, value) => {
    const stored = await written.put(kind, key, value);
    say('noted', kind, key);
    return stored;
  },
  get: (kind, key) => written.get(kind, key),
  all: (kind) => written.all(kind),
  uniqueKey: (key) => written.uniqueKey(key),
};
const recorded = journal.turnsOf(place);
let stored = recorded.length;
const policy = scriptedPolicy({
  readsPrompt: false,
  says: async () => {
    const turn = stored + 1;
    say('samples', turn);
    if (turn === hangsAt) await new Promise(() => undefined);
    return answers ? answers[Math.min(turn, answers.length) - 1]! : `Step ${turn}.`;
  },
  recorded,
  onTurn: async (turn) => {
    const row = { group: 1, index: 0, turn: stored++, ...turn };
    await recordTurn(journal, row, { onRecord: true, until: signal });
    say('sampled', turn.call!.id);
  },
});
const environment = await openAgent({ id: 'mine', program, given: {} });
const sandboxes = sandboxesFor({ program }, { store: storeUri, run: 'run', lineage: 'l', group: '1', index: 0 })!;
const record = await environment.rollout(environment.dataset.at(0), policy, {
  group: 'g',
  index: 0,
  size: 1,
  dataset: 'dataset',
  signal,
  notes,
  sandboxes: { ...sandboxes, take: (request, options) => sandboxes.take({ ...request, folders }, options) },
});
// All of it before the process ends: it is more than a pipe holds.
await new Promise<unknown>((written) => process.stdout.write(`record ${JSON.stringify(record)}\n`, written));
await closeProcesses();
process.exit();

/** One attempt at a rollout of a program that goes on in snapshots. Arguments: JSON of the program, the store, and the turn that is never answered. */
import { openAgent } from '../../../backends/environments/agent/agent-environment.ts';
import type { RolloutNotes } from '../../../core/rl/rollout/notes.ts';
import type { AgentProgram } from '../../../core/settings/programs.ts';
import { closeProcesses } from '../../../host/processes-open.ts';
import { recordTurn } from '../../../play/training-players.ts';
import { sandboxesFor } from '../../../play/sandboxes/rollout-sandboxes.ts';
import { RolloutJournal } from '../../../runs/rollouts/rollout-journal.ts';
import { openRunStore } from '../../../store/index.ts';
import { scriptedPolicy } from './scripted-policy.ts';

const [given = '', storeUri = '', hangsAt = '0'] = process.argv.slice(2);
const program = JSON.parse(given) as AgentProgram;
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
const policy = scriptedPolicy({
  says: async (prompt) => {
    const turn = prompt.split('<|im_start|>assistant').length - 1;
    say('samples', turn);
    if (String(turn) === hangsAt) await new Promise(() => undefined);
    return `Step ${turn}.`;
  },
  recorded,
  onTurn: async (turn) => {
    const row = { group: 1, index: 0, turn: recorded.length, ...turn };
    await recordTurn(journal, row, { onRecord: true, until: signal });
    say('sampled', turn.call!.id);
  },
});
const environment = await openAgent({ id: 'mine', program, given: {} });
const record = await environment.rollout(environment.dataset.at(0), policy, {
  group: 'g',
  index: 0,
  size: 1,
  dataset: 'dataset',
  signal,
  notes,
  sandboxes: sandboxesFor({ program }, { store: storeUri, run: 'run', lineage: 'l', group: '1', index: 0 })!,
});
say('record', JSON.stringify(record));
await closeProcesses();
process.exit();

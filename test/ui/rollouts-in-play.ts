/** Rollouts that a worker plays, of a recorded run, whose program and model say what would harm a page. */
import { noPrices } from '../../core/rl/budget.ts';
import { effectNotes } from '../../core/rl/rollout/effects.ts';
import type { RecordedTurn } from '../../core/rl/rollout/rollout.ts';
import { unlimited } from '../../core/settings/budgets.ts';
import { RolloutBudget } from '../../play/budget/rollout-budget.ts';
import { ChunkProgress } from '../../play/progress/chunk-progress.ts';
import { layout } from '../../runs/layout.ts';
import { RolloutJournal } from '../../runs/rollouts/rollout-journal.ts';
import type { TestRun } from '../activities/runs.ts';
import { harmful } from './recorded-run.ts';

/** Rollouts 0 and 1 of group 90; the second has a turn, an effect, a sandbox and a budget. */
export async function playing({ run, store }: TestRun): Promise<void> {
  const { signal } = new AbortController();
  const round = { step: 7, first: 90, last: 91 };
  const prefix = `${layout.round(run.lineage, round.step, round.first, round.last)}chunk_1_of_1`;
  const journal = await RolloutJournal.open(store, `${prefix}/`, 'leases', { notes: `${prefix}/notes_`, signal });
  const chunk = { lineage: run.lineage, ...round, chunk: 'chunk_1_of_1' };
  const places = [0, 1].map((index) => ({ group: 90, index }));
  const progress = new ChunkProgress({ store, chunk, attempt: 1, journal, places });
  const budget = new RolloutBudget({ ...unlimited, tokens: 500 }, { shared: [], prices: noPrices });
  budget.adopt({ promptTokens: 100, completionTokens: 20 });
  for (const place of places)
    progress.begin(place, { environment: 'repair', exampleId: 3, version: 6, earlier: 0, budget });
  const turn: RecordedTurn = {
    ...places[1]!,
    turn: 0,
    seconds: 0.25,
    promptTokenIds: [1, 2, 3],
    tokenIds: [4, 5],
    logprobs: null,
    text: '',
    toolCalls: [{ name: harmful[0], arguments: harmful[1] }],
    finishReason: 'stop',
    call: { id: '0123456789abcdef-0', after: null },
    policyStep: 6,
  };
  journal.addTurn(turn);
  progress.turn(places[1]!, turn, null);
  progress.sandbox(places[1]!, { provider: 'namespace', name: 'ratchet-7', sinceMs: Date.now(), deadlineAtMs: Date.now() + 60_000 }); // prettier-ignore
  const note = { kind: 'once', name: harmful[2], arguments: '', digest: '', by: 'x' };
  await journal.notes.of(places[1]!).put(effectNotes.begun, 'a', note);
  await progress.write();
}

import { decodeStored } from '../forms/stored-forms.ts';
import type { EvaluationPlace } from '../../core/eval/evaluation.ts';
import type { StoredPromptSearch } from '../../core/gepa/prompt-search.ts';
import { costMetrics } from '../../core/rl/cost.ts';
import { AnswerJournal } from '../rollouts/answer-journal.ts';
import { lineageOf, stepOf } from '../layout.ts';
import { appendMetrics } from '../metrics/metrics.ts';
import { specOf, storeOf } from '../run-access.ts';
import { searchKeys } from './search-store.ts';

/** Prefix of request ids of trials, which test a search's result on a newer version. */
export const trialRequest = 'trial.';

/**
 * Records the cost of a search that a run branched off, or of its trial, as a row of the run's metrics. Idempotent,
 * since it sums stored answers. Searches without a run get no row.
 */
export async function recordSearchCost(place: EvaluationPlace, of: 'search' | 'trial'): Promise<void> {
  const store = storeOf(place);
  const key = searchKeys.search(place);
  const bytes = await store.read(key);
  const stored = bytes && decodeStored<StoredPromptSearch>(bytes, key);
  const { model, environments, isBranch } = stored?.input ?? {};
  const step = stepOf(place.prefix.replace(/\/$/, ''));
  if (!stored || isBranch !== true || model?.kind !== 'version' || step === null) return;
  const journal = await AnswerJournal.open(place, stored);
  const used = journal.used((request) => request.startsWith(trialRequest) === (of === 'trial'));
  const { cost } = await specOf(model.run);
  const name = environments!.map((one) => one.name).join('+');
  const metrics = costMetrics(used, cost, `${of}/${name}/`);
  if (Object.keys(metrics).length > 0)
    await appendMetrics(store, { step, lineage: lineageOf(place.prefix), ...metrics });
}

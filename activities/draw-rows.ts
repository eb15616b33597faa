import type { ObjectRef, PolicyVersion, RowPlace, RunHandle } from '../core/rl/run-state.ts';
import { BatchWriter, putPacked } from '../runs/rollouts/batches.ts';
import { drawSequences } from '../learn/drawn-sequences.ts';
import { servedPolicy, specOf } from '../runs/run-access.ts';
import { type OpenTokenizer, policyTokenizer } from '../play/policy/policy-tokenizer.ts';
import { withHeartbeat } from './around/heartbeat.ts';
import { trainedTokens } from '../core/rl/metrics.ts';

interface DrawInput {
  readonly run: RunHandle;
  readonly step: number;
  readonly from: RowPlace;
  /** A version whose weights are stored: all versions share its tokenizer. */
  readonly policy: PolicyVersion;
}

/** Rows that a step of a run with `[data]` trains on. */
interface DrawnRows {
  readonly packed: ObjectRef;
  readonly rows: number;
  readonly next: RowPlace;
  readonly metrics: Readonly<Record<string, number>>;
}

/**
 * Packs the next sequences of `[data]`. Idempotent: from the same position its parts are the same objects, even after a
 * death half-way.
 */
export const createDrawRows =
  ({ tokenizer: open }: { readonly tokenizer: OpenTokenizer }) =>
  (input: DrawInput): Promise<DrawnRows> =>
    withHeartbeat(
      () => drawRows(input, open),
      () => undefined,
    );

async function drawRows({ run, step, from, policy }: DrawInput, open: OpenTokenizer): Promise<DrawnRows> {
  const spec = await specOf(run);
  const { folder } = await servedPolicy(run, policy, { isRead: false });
  const tokenizer = await policyTokenizer(run, spec, { folder, open });
  const { rows, next, skipped, cut } = await drawSequences(run, spec, { tokenizer, from });
  const writer = new BatchWriter(run, step);
  let [tokens, counted] = [0, 0];
  for (const { sample, sequence } of rows) {
    tokens += sample.tokenIds.length;
    counted += sample.lossMask.filter((mask) => mask === 1).length;
    await writer.add(sample, sequence);
  }
  const metrics = {
    'batch/rows': rows.length,
    'batch/tokens': tokens,
    [trainedTokens]: counted,
    'batch/skipped_rows': skipped,
    'batch/cut_rows': cut,
    'progress/rows': next.row,
  };
  const stored = await writer.end({ of: spec.data!.batchSize });
  return { packed: await putPacked(run, step, { rows: stored, metrics }), rows: rows.length, next, metrics };
}

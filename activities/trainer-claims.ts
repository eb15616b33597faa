import { Context } from '@temporalio/activity';
import { RatchetError } from '../core/errors.ts';
import { layout } from '../runs/layout.ts';
import type { RunHandle } from '../core/rl/run-state.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import type { MayGoOn } from '../learn/policy-trainer.ts';
import { type TrainerClaim, trainerClaimIn } from '../runs/forms/record-shapes.ts';
import { storeOf } from '../runs/run-access.ts';
import type { ProcessLease } from './around/process-lease.ts';

/** Epochs of a run are numbered without gaps: the next one is free until a hold claims it. */
export async function nextTrainerEpoch({ run }: { readonly run: RunHandle }): Promise<number> {
  const keys = await storeOf(run).list(layout.trainerClaims());
  return 1 + Math.max(0, ...keys.map((key) => Number(/epoch_(\d+)\.json$/.exec(key)?.[1] ?? 0)));
}

/** One of several claimants gets an epoch. */
export async function claimTrainer(run: RunHandle, claim: TrainerClaim): Promise<void> {
  const key = layout.trainerClaim(claim.epoch);
  const { bytes } = await storeOf(run).putIfAbsent(key, encodeStored(key, claim));
  const { holder } = trainerClaimIn(bytes, key);
  if (holder !== claim.holder) throw superseded(run, claim, { epoch: claim.epoch, holder });
  await requireNewestClaim(run, claim);
}

/**
 * Throws when another process has claimed the run since: a process that was taken for dead stops here, before it writes
 * weights or trains. A later claim by the same process is fine.
 */
export async function requireNewestClaim(run: RunHandle, claim: TrainerClaim): Promise<void> {
  for (let { epoch } = claim; ; epoch += 1) {
    const key = layout.trainerClaim(epoch + 1);
    const bytes = await storeOf(run).read(key);
    if (!bytes) return;
    const later = trainerClaimIn(bytes, key);
    if (later.holder !== claim.holder) throw superseded(run, claim, later);
  }
}

/** Check for long work in this process: throws when it was cancelled, or when another process holds the run by now. */
export function goingOn(run: RunHandle, epoch: number, { holder }: ProcessLease): MayGoOn {
  const { cancellationSignal } = Context.current();
  return async () => {
    cancellationSignal.throwIfAborted();
    await requireNewestClaim(run, { epoch, holder });
  };
}

function superseded(run: RunHandle, claim: TrainerClaim, later: TrainerClaim): RatchetError {
  return new RatchetError(
    'TrainerSuperseded',
    `The run ${run.name} was leased to this GPU worker (${claim.holder}) under epoch ${claim.epoch} and is leased to ${later.holder} under epoch ${later.epoch} now. This one stops; nothing of its work is used.`,
  );
}

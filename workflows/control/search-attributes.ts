import { upsertMemo, upsertSearchAttributes } from '@temporalio/workflow';
import { defineSearchAttributeKey } from '@temporalio/common';

/** Attributes for finding runs: `temporal workflow list --query 'RatchetRun="…"'`. */
const attributes = {
  run: defineSearchAttributeKey('RatchetRun', 'KEYWORD'),
  step: defineSearchAttributeKey('RatchetStep', 'INT'),
  reward: defineSearchAttributeKey('RatchetReward', 'DOUBLE'),
};

/** A namespace without them has it in the memo. */
export function publishStep(of: {
  readonly run: string;
  readonly step: number;
  readonly reward: number | null;
  readonly hasSearchAttributes: boolean;
}): void {
  const { run, step, reward } = of;
  if (!of.hasSearchAttributes) return upsertMemo({ run, step, ...(reward === null ? {} : { reward }) });
  upsertSearchAttributes([
    { key: attributes.run, value: run },
    { key: attributes.step, value: step },
    ...(reward === null ? [] : [{ key: attributes.reward, value: reward }]),
  ]);
}

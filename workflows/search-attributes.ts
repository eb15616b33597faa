import { defineSearchAttributeKey } from '@temporalio/common';

/** By which runs are found: `temporal workflow list --query 'RatchetRun="…"'`. */
export const attributes = {
  run: defineSearchAttributeKey('RatchetRun', 'KEYWORD'),
  step: defineSearchAttributeKey('RatchetStep', 'INT'),
  reward: defineSearchAttributeKey('RatchetReward', 'DOUBLE'),
};

import type { ScheduleChange } from '../activities/record-change.ts';
import { readScheduleChangeInput } from './inputs.ts';
import { scheduleRecords } from './options.ts';

/**
 * Keeps who changed a schedule. The command that changed it starts this workflow: its history has the name that the
 * Temporal server knows, and it waits for an orchestrator and for the store where a command would not.
 */
export async function recordScheduleChange(...given: [ScheduleChange]): Promise<void> {
  const change = readScheduleChangeInput(given);
  await scheduleRecords.recordScheduleChange.executeWithOptions({ summary: change.what }, [change]);
}

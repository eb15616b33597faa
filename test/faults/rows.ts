/** Rows of the fault matrix, in the order of the table. A new kind of fault is a file of its own, named here. */
import { activityFaults } from './activity-faults.ts';
import { agentFaults } from './agent-faults.ts';
import { clockFaults } from './clock-faults.ts';
import { clusterFaults } from './cluster-faults.ts';
import { continuousFaults } from './continuous-faults.ts';
import { databaseFaults } from './database-faults.ts';
import { diskFaults } from './disk-faults.ts';
import { environmentFaults } from './environment-faults.ts';
import { neighbourFaults } from './neighbour-faults.ts';
import { primeRlFaults } from './prime-rl-faults.ts';
import { processFaults } from './process-faults.ts';
import type { Row, Rows } from './row.ts';
import { s3Faults } from './s3-faults.ts';
import { storeFaults } from './store-faults.ts';
import { tinkerFaults } from './tinker-faults.ts';
import { torchFaults } from './torch-faults.ts';
import { upgradeFaults } from './upgrade-faults.ts';
import { vllmFaults } from './vllm-faults.ts';

export const rows = {
  ...processFaults,
  ...neighbourFaults,
  ...activityFaults,
  ...clockFaults,
  ...databaseFaults,
  ...clusterFaults,
  ...s3Faults,
  ...storeFaults,
  ...diskFaults,
  ...environmentFaults,
  ...upgradeFaults,
  ...tinkerFaults,
  ...torchFaults,
  ...primeRlFaults,
  ...vllmFaults,
  ...continuousFaults,
  ...agentFaults,
} satisfies Rows;
export type RowName = keyof typeof rows;

export const allRows = Object.keys(rows) as RowName[];

export function rowOf(name: RowName): Row {
  return rows[name];
}

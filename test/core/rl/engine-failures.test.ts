import assert from 'node:assert/strict';
import { test } from 'node:test';
import { trainerFailure } from '../../../core/rl/engine-failures.ts';
import { RatchetError } from '../../../core/errors.ts';

const codeOf = (error: unknown): string =>
  error instanceof RatchetError ? error.code : error instanceof Error ? error.name : typeof error;

test('a trainer’s failure is named by its words, with what may be done about it', () => {
  const died = (text: string) => trainerFailure(new RatchetError('EngineDied', text));
  const memory = died('the trainer process ended: killed by signal SIGKILL') as RatchetError;
  assert.equal(memory.code, 'OutOfMemory');
  assert.match(memory.message, /killed by signal SIGKILL Remedies: a smaller \[trainer\] micro_batch_size/);
  const nccl = trainerFailure(
    new Error('ncclRemoteError: A call failed possibly due to a network error'),
  ) as RatchetError;
  assert.equal(nccl.code, 'NcclFailed');
  assert.match(nccl.message, /Remedies: NCCL_P2P_DISABLE=1/);
  assert.equal(codeOf(died('ended with code 134')), 'EngineDied');
  const other = new TypeError('x is not a function');
  assert.equal(trainerFailure(other), other);
  const told = new RatchetError('InferenceUnavailable', 'CUDA out of memory');
  assert.equal(trainerFailure(told), told, 'what has a code keeps it');
});

test('where a rank’s memory ran out its neighbours speak of NCCL: it is the memory', () => {
  const both =
    "NCCL error in: NCCLUtils.hpp:268, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nCuda failure 2 'out of memory'";
  assert.equal(codeOf(trainerFailure(new Error(both))), 'OutOfMemory');
});

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

/** Number of NVIDIA GPUs on this machine according to its driver; 0 without a driver. */
export async function gpusHere(): Promise<number> {
  return (await gpuBytesHere()).length;
}

/** Memory of each of them. */
export async function gpuBytesHere(): Promise<readonly number[]> {
  try {
    const { stdout } = await promisify(execFile)('nvidia-smi', ['--query-gpu=memory.total', '--format=csv,noheader,nounits'], { timeout: 10_000 }); // prettier-ignore
    // Some GPUs share the memory of the machine, and tell none of their own.
    return stdout
      .split('\n')
      .flatMap((line) => (/^\s*(\d+|\[.*\])\s*$/.test(line) ? [(Number.parseInt(line, 10) || 0) * 2 ** 20] : []));
  } catch {
    return []; // no driver, or one that does not work
  }
}

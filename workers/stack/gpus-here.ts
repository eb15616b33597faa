import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

/** Number of NVIDIA GPUs on this machine according to its driver; 0 without a driver. */
export async function gpusHere(): Promise<number> {
  try {
    const { stdout } = await promisify(execFile)('nvidia-smi', ['--query-gpu=index', '--format=csv,noheader'], {
      timeout: 10_000,
    });
    return stdout.split('\n').filter((line) => /^\d+$/.test(line.trim())).length;
  } catch {
    return 0; // no driver, or one that does not work
  }
}

import { openPython } from '../../backends/environments/kit.ts';

/** Whether model-written Python can be isolated on this machine. Where it can be, tests of it are not skipped. */
export async function canSandbox(): Promise<boolean> {
  return openPython().then(
    () => true,
    () => false,
  );
}

export const missingSandbox = 'this machine has no user namespaces, or no python3';

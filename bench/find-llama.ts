import { access } from 'node:fs/promises';
import path from 'node:path';
import { CannotMeasure } from './measurement.ts';

/** The folder of node-llama-cpp below the one that RATCHET_LLAMA_CPP names. */
export async function findLlama(): Promise<string> {
  const folder = path.join(process.env['RATCHET_LLAMA_CPP'] ?? '', 'node_modules/node-llama-cpp');
  const isThere = await access(path.join(folder, 'package.json')).then(
    () => true,
    () => false,
  );
  if (process.env['RATCHET_LLAMA_CPP'] && isThere) return folder;
  const advice = 'npm install --ignore-scripts node-llama-cpp@3.22.1 in a folder of its own, and name that folder';
  throw new CannotMeasure(`RATCHET_LLAMA_CPP: expected a folder with node-llama-cpp. ${advice}.`);
}

/** `npm run bench -- …`: packages, then the measurements. */
import { ensurePackages, projectRoot, runInForeground, runSetup } from './packages.mjs';

await runSetup(async () => {
  await ensurePackages();
  const args = ['--import', 'tsx', 'bench/main.ts', ...process.argv.slice(2)];
  return runInForeground(process.execPath, args, { folder: projectRoot });
});

let reading: Promise<void> | null = null;

/**
 * From now on this process reads TypeScript: files that a user wrote. From source it does already; the program as built (`workers/built.mjs`)
 * does without the loader until it meets the first of them.
 */
export function readTypeScript(): Promise<void> {
  // What is put together has no place of its own among the sources.
  const isSource = import.meta.filename.endsWith('.ts');
  return (reading ??= isSource ? Promise.resolve() : registerLoader());
}

/** Both ways of reading: a file is CommonJS where no package.json says otherwise. */
async function registerLoader(): Promise<void> {
  const [forRequire, forImport] = [await import('tsx/cjs/api'), await import('tsx/esm/api')];
  forRequire.register();
  forImport.register();
}

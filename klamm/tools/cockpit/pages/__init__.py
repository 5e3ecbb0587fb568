"""The APIs of the page, one module for each view. `klamm.tools.cockpit.server.PAGES` names those that are served."""
